"""The place where ms-swift keeps its names; importing it says where they are here."""

raise ImportError(
    "swift.llm is a module of ms-swift; this swift has Swift, Trainer, TrainerConfig and SwiftModel in `swift` itself. "
    'For example: from swift import Swift, TrainerConfig; Swift.from_config(TrainerConfig(model="...", dataset="...", '
    "learning_rate=1e-5)).train(). Other commands are on the command line: swift --help"
)
