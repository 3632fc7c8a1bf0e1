"""Configuration files of Acme, read by swift."""

from swift.config import NotNeeded, renamed
from swift.contracts import FlagTopic, TranslatedRun, Vocabulary

KEYS = {"checkpoint": "model.path", "rows": "data.train", "rate": "optim.lr", "steps": "train.max_steps"}


class Acme(Vocabulary):
    def program_of(self, values):
        return "Acme" if "acme_version" in values else None

    def translate(self, run):
        translated = TranslatedRun(run)
        for key, value in run.values.items():
            if key in KEYS:
                translated.set(KEYS[key], value, key)
            elif key == "acme_version":
                translated.unneeded(key, value, "is the version of the file")
            else:
                translated.lose(key, value, "swift has no such setting")
        translated.set("tuner.kind", "full", "Acme's default")
        return translated

    def flags(self):
        topic = FlagTopic(
            "Acme",
            flags=((("acme_rate",), "optim.lr", "value", renamed("optim.lr")),),
            meanings={("acme_color",): NotNeeded("swift prints without colors")},
        )
        return [topic]

    def advice(self, name):
        return "Write: from swift import Trainer" if name == "AcmeTrainer" else None
