"""Module of ms-swift; importing it raises an error that names the replacements."""

raise ImportError(
    "swift.llm is a module of ms-swift. Import Swift, Trainer, TrainerConfig and SwiftModel from `swift`. "
    'For example: from swift import Swift, TrainerConfig; Swift.from_config(TrainerConfig(model="...", dataset="...", '
    "learning_rate=1e-5)).train(). For other commands use the command line: swift --help"
)
