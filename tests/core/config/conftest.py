"""Stand-ins for backends, for the tests of this folder."""

from stand_ins import stand_ins as stand_ins
