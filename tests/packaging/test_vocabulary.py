"""Names, messages and pages use the words of the trade."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

WORDS = {
    r"pictures?|pictured": "image",
    r"sounds?": "audio; of a checkpoint: finite, valid",
    r"towers?": "vision encoder, audio encoder",
    r"answers?|answered": "completion, response; of plugins: return value",
    r"draws?|drawn|drew|drawing": "sample, generate",
    r"texts": "strings; of data: sequences, documents",
    r"told|said|says|asked": "passed, declared, reported, requested",
    r"(?<!in )places?": "index, position; of a file: path",
    r"tak(?:e|es|ing) turns": "layer rotation",
    r"(?<!exit )(?<!status )(?<!error )codes|few bits|fewer bits": "quantized values, low-bit, FP8/INT8/NF4",
    r"(?<!bounding )box(?:es)?": "of a tensor: shard, slice; in images: bounding box",
    r"beside": "compared with, relative to",
    r"elsewhere|other programs?|foreign": "third-party, compat",
    r"obstacles?": "incompatibility",
    r"journals?": "resume file, log",
    r"keepers?|clerks?|desks?|speakers?": "job store, job runner, session, chat engine",
    r"gaps?": "train-inference mismatch",
    r"lags?|lagging": "staleness",
    r"carry|carries|carried|hand(?:s|ed)? (?:on|over)": "pass",
    r"verbs?": "command",
    r"in (?:the )?place of": "instead of",
    r"that (?:is|are) none|nobody can mean|cannot be meant": "invalid",
    r"as ever|as it was|as they were": "unchanged",
    r"in silence": "silently",
    r"half of a surrogate(?: pair)?": "unpaired surrogate",
    r"whoever|nobody|somebody": "the name of the component",
}
"""What not to write, in names and texts → what to write."""

NAMES = {
    r"words": "argv, arguments",
    r"shares": "time breakdown",
    r"owners": "owner rank",
    r"talks": "session",
    r"(?:read|adapters?|tuners?|of) starts": "adapter initialization",
    r"(?<!neftune )noise": "NEFTune",
    r"(?:tensor|rollout|sample|batch|save|process) plans?": "TP spec, batch schedule, save plan of DCP, layout",
}
"""The same, where only names count: in texts these words also have their usual meaning."""

_CHART = r"(?:chart|curve|line|graph|plot|diagram|axis|table|screen|bar|page|image|terminal)s?"
ORDINARY = (
    # Statistics.
    *(
        r"random(?:ly)? (?:draws?|drawn)",
        r"draw[sn]? at random",
        r"drawn? from (?:the|a) (?:normal|uniform) distribution",
    ),
    *(r"(?:gaussian|gradient|random|image|label|white) noise", r"noise (?:scale|level|schedule)"),
    # Charts, HTML and CSS.
    rf"(?:re)?draw(?:s|n|ing)? (?:a|an|the|its|each|as an?)? ?{_CHART}",
    *(rf"{_CHART} (?:is|are|was|were) (?:re)?drawn", r"charts? drawn", r"draw(?:ing)? (?:area|context)"),
    *(r"box[- ](?:shadow|sizing|model)", r"(?:text|dialog|combo|check|message|tool) box(?:es)?"),
    # Data sets, tasks and the answers that these have, their columns and tags.
    *(r"questions? and answers?", r"question[- ]answer(?:s|ing)?", r"multiple[- ]choice answers?"),
    *(
        r"(?:reference|correct|final|known|expected|gold) answers?",
        r"`answers?`",
        r"</?answer>",
        r"answer (?:yes|no)\b",
        r"answer(?:s|ed|ing)? (?:to )?the (?:question|query)",
        r"answer is (?:not )?(?:correct|right|wrong)",
        r"tagged answers?|answer in `?<answer>|answer tags?",
    ),
    # Prompts of other projects, word for word: Qwen3-Reranker's, DeepSeek-R1's; a judge's form.
    *(r"the answer can only be", r"the answer\.\n|process and answer|answer here", r"answer:\n\{"),
    # Idioms.
    *(r"(?:take|takes|taking|took|to) place\b", r"in[- ]place(?! of)", r"first place", r"decimal places?"),
    r"as (?:it was|they were) (?=\w+(?:ed|[dltw]en|rn|wn|nt|ad|ilt)\b|before|when|made|found)",
    # Sequences of numbers, GaLore's option, settings of another file.
    *(r"(?:first|leaves? a|leaving|without|no) gaps?(?! between)", r"gaps? (?:in|before|after)", r"proj gap"),
    r"carr(?:y|ies|ied) over",
    # Other codes and words, third-party names.
    *(r"(?:return|language|country|HTTP|source|colou?r|escape) codes", r"(?:stop|bad|key|filler|in) words"),
    *(r"systemd journal", r"foreign keys?"),
)
"""Usual expressions with such a word, in names and texts."""
BOXES = re.compile(r"bounding boxe?s?\b", re.IGNORECASE)
"""A text that has it may go on with `box`."""

DEFINES = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.arg: "arg",
    ast.Name: "id",
    ast.Attribute: "attr",
}
"""Where nodes that may define a name keep it."""

SCRIPT_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Use(NamedTuple):
    """A private word in a name or a text."""

    file: Path
    line: int
    word: str
    entry: str

    def __str__(self) -> str:
        instead = {**WORDS, **NAMES}[self.entry]
        return f"{self.file}:{self.line}: {self.word!r}: write {instead}"


@functools.cache
def _pattern(names: bool) -> tuple[re.Pattern[str], tuple[str, ...]]:
    entries = (*WORDS, *(NAMES if names else ()))
    return re.compile(rf"\b(?:{'|'.join(f'({entry})' for entry in entries)})\b", re.IGNORECASE), entries


@functools.cache
def _found(text: str, names: bool = False) -> tuple[tuple[int, str, str], ...]:
    """Return for each private word the lines before it, itself, and its row of the table."""
    pattern, entries = _pattern(names)
    if pattern.search(text) is None:
        return ()
    usual = [r"box(?:es)?", *ORDINARY] if BOXES.search(text) else ORDINARY
    left = re.sub(rf"(?<!\w)(?:{'|'.join(usual)})", lambda each: re.sub(r"\w", "-", each[0]), text, flags=re.IGNORECASE)
    return tuple(
        (left.count("\n", 0, each.start()), each[0], entries[each.lastindex - 1]) for each in pattern.finditer(left)
    )


@functools.cache
def _split(name: str) -> str:
    """`TowerReader` and `tower_reader` both become `tower reader`."""
    return " ".join(PART.findall(name)).lower()


def of_module(file: Path) -> Iterator[Use]:
    """Yield the uses in a module: its own name, names that it defines, and its texts, but not its docstrings."""
    own = file.parent.name if file.name == "__init__.py" else file.stem
    for _, word, entry in _found(_split(own), names=True):
        yield Use(file, 1, word, entry)
    docstrings = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        kind = type(node)
        found: Sequence[tuple[int, str, str]] = ()
        if kind is ast.Expr:
            docstrings.add(node.value)
        elif kind is ast.Constant:
            if isinstance(node.value, str) and " " in node.value and node not in docstrings:
                found = _found(node.value)
        elif kind in DEFINES and not isinstance(getattr(node, "ctx", None), ast.Load):
            found = _found(_split(getattr(node, DEFINES[kind])), names=True)
        for _, word, entry in found:
            yield Use(file, node.lineno, word, entry)


def of_page(file: Path) -> Iterator[Use]:
    for before, word, entry in _found(file.read_text(encoding="utf-8")):
        yield Use(file, before + 1, word, entry)


def of_script(file: Path) -> Iterator[Use]:
    """Yield the uses in the texts of a browser's script: strings with a space or an initial capital."""
    content = file.read_text(encoding="utf-8")
    for text in SCRIPT_TEXT.finditer(content):
        shown = re.sub(r"\$\{[^}]*\}", "", text[1] or text[2] or "")
        if len(shown.split()) > 1 or shown[:1].isupper():
            for before, word, entry in _found(shown):
                yield Use(file, content.count("\n", 0, text.start()) + before + 1, word, entry)


def of_markup(file: Path) -> Iterator[Use]:
    """Yield the uses in what a page of HTML shows."""
    shown = MARKUP.sub(lambda tag: "\n" * tag[0].count("\n"), file.read_text(encoding="utf-8"))
    for before, word, entry in _found(shown):
        yield Use(file, before + 1, word, entry)


READERS: dict[str, Callable[[Path], Iterator[Use]]] = {
    "packages/*/src/**/*.py": of_module,
    "packages/*/src/**/*.js": of_script,
    "packages/*/src/**/*.html": of_markup,
    "examples/**/*.py": of_module,
    "*.md": of_page,
    "docs/**/*.md": of_page,
    "examples/**/*.md": of_page,
    "packages/*/README.md": of_page,
}


def uses() -> list[Use]:
    files = [(file, reader) for pattern, reader in READERS.items() for file in sorted(ROOT.glob(pattern))]
    return [use._replace(file=use.file.relative_to(ROOT)) for file, reader in files for use in reader(file)]


def test_no_private_word_is_used() -> None:
    found = uses()
    assert not found, "\n".join(str(use) for use in found[:40])
