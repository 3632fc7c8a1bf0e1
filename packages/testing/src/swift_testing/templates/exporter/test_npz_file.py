"""The conformance kit: swift reads the exports back, and finds an altered file."""

from swift_testing import ExporterConformance


class TestNpzFile(ExporterConformance):
    exporter = "npz-file"


class TestInt8(ExporterConformance):
    exporter = "npz-file"
    options = {"store": "int8"}
