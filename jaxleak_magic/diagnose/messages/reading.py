"""Reads a pasted text line by line: JAX's leak report, its errors, and the tracebacks around them.

The wordings are those of JAX 0.3 to 0.12. A line that is of none of them is kept as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from jaxleak_magic.diagnose.messages.referrers_text import Hop, is_unheld, read_hop
from jaxleak_magic.diagnose.messages.tracer_text import (
    TracerText,
    open_brackets,
    read_tracer,
    read_type,
    starts_tracer,
)


@dataclass(frozen=True)
class Spot:
    """A line as the text names it: its file or ``In [n]``, and what the text shows of it.

    Attributes:
        file: file name as printed, or None for a cell.
        line: 1-based line.
        column: 0-based column, or None.
        function: the function's name, or None.
        count: execution count of the cell, or None.
        source: the line's text where the traceback shows it, or None.
    """

    file: str | None
    line: int
    column: int | None = None
    function: str | None = None
    count: int | None = None
    source: str | None = None


@dataclass(frozen=True)
class Traced:
    """The function that was being traced: its name, where it is defined, and JAX's word for the transform."""

    function: str
    spot: Spot
    transform: str | None


@dataclass
class TracerBlock:
    """What a leak report says of one tracer."""

    printed: TracerText | None = None
    created: Spot | None = None
    traced: Traced | None = None
    arguments: str | None = None
    operations: list[tuple[str, Spot | None]] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)


@dataclass
class LeakedText:
    """A leak report: the trace's class (None for a sublevel), its tracers, and the traceback above it."""

    trace: str | None
    tracers: list[TracerBlock] = field(default_factory=list)
    frames: list[Spot] = field(default_factory=list)


@dataclass
class EscapedText:
    """An ``UnexpectedTracerError``: the tracer's class and type, and where it came from."""

    tracer: str | None = None
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    traced: Traced | None = None
    created: Spot | None = None
    stack: list[Spot] = field(default_factory=list)
    detail: TracerText | None = None


@dataclass
class ErrorText:
    """An exception: its class name as printed, its message word for word, and the traceback above it."""

    type: str
    message: list[str]
    frames: list[Spot]
    traced: Traced | None = None


@dataclass
class ParsedText:
    """All that was understood of a text, and the lines that were not."""

    leaked: LeakedText | None = None
    escaped: EscapedText | None = None
    errors: list[ErrorText] = field(default_factory=list)
    frames: list[Spot] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def read_text(text: str) -> ParsedText:
    """Read a text that was pasted. Never raises for any ``str``."""
    reader = _Reader(_lines(text))
    reader.read()
    return reader.found


_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^(?:E {2,}(?=\S)|> ?)")
_SPOT = r"(?P<file>[^\n]*?):(?P<line>\d+)(?::(?P<column>\d+))?(?: \((?P<function>[^\n]*?)\))?"
_STACK_SPOT = re.compile(rf"^\s*{_SPOT}$")
_LEAKED = re.compile(
    r"Leaked (?P<what>trace|level|sublevel) (?P<name>\w+(?:\([^()]*\))?)(?:\.|$)"
    r"(?: Leaked tracer\(s\):? ?(?P<rest>.*))?"
)
_IN_A_LIST = re.compile(r"Traced<.*?(?:>with<|:)\w+(?:\(level=\d+/\d+\))?>")
_CREATED = re.compile(
    rf"(?:This (?:\w*Tracer)(?: with object id \d+)?|The leaked intermediate value|The tracer that caused this error)"
    rf" was created on line:?(?:\s+{_SPOT})?(?:\.(?:\s.*)?)?$"
)
_HAS_TYPE = re.compile(r"(?:The tracer has|value with) shape (?P<shape>\([^)]*\)) and dtype (?P<dtype>\w+)")
_WITH_TYPE = re.compile(r"value with type (?P<type>\S+) wrapped in an? (?P<tracer>\w+) to escape")
_WRAPPED = re.compile(r"wrapped in an? (?P<tracer>\w+)")
_ORIGIN = re.compile(
    r"[Ww]hile tracing the function (?P<name>.+?) at (?P<file>.+?):(?P<line>\d+) for (?P<what>[^.,\n]+)[.,]?.*$"
)
_BEING_TRACED = re.compile(
    r"^The function being traced(?: when the (?:value|tracer) leaked)? was (?P<name>.+?) at (?P<file>.+?):(?P<line>\d+)"
    r"(?: (?:traced for|transformed by) (?P<what>[^.\n]+))?\.?\s*$"
)
_ARGUMENTS = re.compile(r"depends on the values? of the arguments? (?P<names>.+?)\.?\s*$")
_BECAME = re.compile(r"This value became a tracer due to JAX operations on these lines:")
_OPERATION = re.compile(r"^\s+operation (?P<equation>.+)$")
_FROM_LINE = re.compile(rf"^\s+from line {_SPOT}\s*$")
_MORE_OPERATIONS = re.compile(r"^\(Additional originating lines are not shown\.?\)$")
_ESCAPED = "Encountered an unexpected tracer."
_DETAIL = re.compile(r"Detail: (?P<detail>.*)$")
_DETAIL_TRACER = re.compile(r"(?:Traced<|\w+Tracer[(<]).*$")
_SHARD = re.compile(r"^On \S+ at mesh coordinates .*:$")

_JAX_SENTENCES = re.compile(
    r"^(?:"
    r"JAX transformations require that functions explicitly return their outputs"
    r"|The functions being transformed should not save traced values to global state"
    r"|When the (?:value|tracer) was created, the final \d+ stack\s+frames"
    r"|To catch the leak earlier, try setting"
    r"|See https?://(?:docs\.jax\.dev|jax\.readthedocs\.io)\S*$"
    r"|-{3,}$"
    r")"
)
_TRACEBACK_WORDS = re.compile(
    r"^(?:Traceback \(most recent call last\):?"
    r"|The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
    r"|The stack trace below excludes JAX-internal frames\."
    r"|The preceding is the original exception that occurred, unmodified\."
    r"|The preceding stack trace is the source of the JAX operation"
    r"|For simplicity, JAX has removed its internal frames from the traceback"
    r"|Set JAX_TRACEBACK_FILTERING=off"
    r"|-{3,}$)"
)
_PYTHON_FRAME = re.compile(r'^\s*File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_IPYTHON_FRAMES = (
    re.compile(
        r"^(?:Cell|Input) In ?\[(?P<count>\d+)\](?:, line (?P<line>\d+))?(?:, in (?P<function>.+?)(?:\(.*\))?)?$"
    ),
    re.compile(r'^File (?P<file>[^"\s].*?):(?P<line>\d+)(?:, in (?P<function>.+?)(?:\(.*\))?)?$'),
    re.compile(r"^(?P<file><ipython-input-(?P<count>\d+)-\w+>|[~/.\w].*?\.py) in (?P<function>.+?)(?:\(.*\))?$"),
)
_INPUT_NAME = re.compile(r"<ipython-input-(\d+)-\w+>")
_ARROW = re.compile(r"^\s*-+> ?(?P<line>\d+)(?: (?P<source>.*))?$")
_NUMBERED = re.compile(r"^\s*(?:\(\.\.\.\)\s*)?\d+(?: .*)?$")
_SKIPPED = re.compile(r"^\s*\[(?:\.\.\. skipping .*|Previous line repeated .*)\]$")
_CARETS = re.compile(r"^\s*[\^~]+\s*$")
_HEADER = re.compile(r"^(?P<type>\w+)\s{2,}Traceback \(most recent call last\)")
_ERROR = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|StackTrace|Exit|Iteration|Warning)|Exception)"
    r"(?:: ?(?P<message>.*))?$"
)
_ANY_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
"""An exception whose class has any name, right below the lines of a traceback."""

_INTERNAL = re.compile(r"^(?:[\w.]*UnfilteredStackTrace|[\w.]*JaxStackTraceBeforeTransformation): ")


class _Reader:
    """Goes through the lines once; each ``_read_...`` takes the lines that it understands and says whether it did."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.found = ParsedText()
        self.error: ErrorText | None = None
        self.block: TracerBlock | None = None
        self.in_ipython_frame = False
        self.below_frame = -1

    def read(self) -> None:
        readers = (
            self._read_traceback,
            self._read_leaked,
            self._read_error,
            self._read_escaped,
            self._read_tracer,
            self._read_origin,
            self._read_hop,
        )
        while self.at < len(self.lines):
            line, start, before = self.lines[self.at], self.at, self.error
            known = not line.strip() or any(read(line) for read in readers)
            if not known and not _JAX_SENTENCES.match(line.strip()) and not self._in_plain_message():
                self.found.unknown.append(line)
            self.at = max(self.at, start + 1)
            if self.error is not None and self.error is before:
                self.error.message += self.lines[start : self.at]

    def _in_plain_message(self) -> bool:
        """Whether this belongs to the message of an error that is kept as a whole."""
        return self.error is not None and self.found.escaped is None and self.found.leaked is None

    # tracebacks

    def _read_traceback(self, line: str) -> bool:
        if header := _HEADER.match(line):
            self._new_section()
            return bool(header)
        if self.error is None or not self._inside_message(line):
            if _TRACEBACK_WORDS.match(line.strip()):
                self._new_section()
                return True
            if frame := _PYTHON_FRAME.match(line):
                self._python_frame(frame)
                return True
            if self._ipython_frame(line):
                return True
        return False

    def _inside_message(self, line: str) -> bool:
        """Rules in an ``UnexpectedTracerError`` look like those that IPython draws."""
        return line.strip().startswith("---") and self.found.escaped is not None

    def _new_section(self) -> None:
        if not self.lines[self.at].startswith("---"):
            self.error = None
        if "Traceback (most recent" in self.lines[self.at]:
            self.found.frames = []
        self.block = None
        self.in_ipython_frame = False

    def _python_frame(self, frame: re.Match[str]) -> None:
        self.error = self.block = None
        self.in_ipython_frame = False
        source: str | None = None
        self.at += 1
        while self.at < len(self.lines) and self.lines[self.at].startswith("    "):  # several lines from Python 3.13 on
            if source is None:
                source = self.lines[self.at].strip()
            self.at += 1
        self.found.frames.append(_spot(frame, source))
        self.below_frame = self.at

    def _ipython_frame(self, line: str) -> bool:
        for pattern in _IPYTHON_FRAMES:
            if (frame := pattern.match(line.rstrip())) and (frame["function"] or "line" in frame.groupdict()):
                self.error = self.block = None
                self.in_ipython_frame = True
                self._frame_with_context(frame)
                return True
        if self.in_ipython_frame and (_ARROW.match(line) or _NUMBERED.match(line) or _SKIPPED.match(line)):
            return True
        return _SKIPPED.match(line) is not None or _CARETS.match(line) is not None

    def _frame_with_context(self, frame: re.Match[str]) -> None:
        """The arrow in the numbered lines below gives the line where the header has none (IPython 7)."""
        self.at += 1
        spot = _spot(frame, None)
        while self.at < len(self.lines):
            line = self.lines[self.at]
            arrow = _ARROW.match(line)
            if arrow:
                source = (arrow["source"] or "").strip()
                spot = Spot(spot.file, _int(arrow["line"]), None, spot.function, spot.count, source or None)
            elif not _NUMBERED.match(line) and not _CARETS.match(line):
                break
            self.at += 1
        if spot.line > 0:
            self.found.frames.append(spot)

    # errors

    def _read_error(self, line: str) -> bool:
        inner = _INTERNAL.sub("", line)
        match = _ERROR.match(inner) or (_ANY_ERROR.match(inner) if self.at == self.below_frame else None)
        if match is None or (self.error is not None and self.error.message and _SPOT_ONLY.match(line)):
            return False
        message = match["message"]
        if message is None and not self.found.frames:
            return False
        self.error = ErrorText(match["type"], [message or ""], list(self.found.frames))
        self.found.errors.append(self.error)
        self.block = None
        self.in_ipython_frame = False
        if message:
            self._read_escaped(message)
            self._read_origin(message)
        self.at += 1
        self._take_message()
        return True

    def _take_message(self) -> None:
        """The lines after the first of an error that is no leak are its message, whatever they are."""
        error = self.error
        assert error is not None
        if self.found.escaped is not None or _ESCAPED in error.message[0]:
            return
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if _HEADER.match(line) or _TRACEBACK_WORDS.match(line.strip()) or _PYTHON_FRAME.match(line):
                break
            if _ERROR.match(_INTERNAL.sub("", line)) or _LEAKED.search(line) or _ESCAPED in line:
                break
            if any(pattern.match(line.rstrip()) for pattern in _IPYTHON_FRAMES[:1]):
                break
            self._read_origin(line)
            error.message.append(line)
            self.at += 1
        self.error = None

    def _read_escaped(self, line: str) -> bool:
        if _ESCAPED in line:
            self.found.escaped = EscapedText()
            self.block = None
            if self.error is None and not _ERROR.match(_INTERNAL.sub("", line)):
                self.error = ErrorText("UnexpectedTracerError", [line], list(self.found.frames))
                self.found.errors.append(self.error)
        escaped = self.found.escaped
        if escaped is None:
            return False
        found = _ESCAPED in line
        if match := _WITH_TYPE.search(line):
            escaped.dtype, escaped.shape = read_type(match["type"])
            escaped.tracer, found = match["tracer"], True
        elif match := _WRAPPED.search(line):
            escaped.tracer, found = match["tracer"], True
        if match := _HAS_TYPE.search(line):
            escaped.dtype, escaped.shape, found = match["dtype"], _shape(match["shape"]), True
        if match := _BEING_TRACED.match(line.strip()):
            escaped.traced, found = _traced(match), True
        if (match := _CREATED.search(_without_type(line))) and match["line"]:
            escaped.created, found = _spot(match, None), True
        if match := _DETAIL.search(line):
            found = True
            if tracer := _DETAIL_TRACER.search(match["detail"]):
                end = self.at + 1
                while end < len(self.lines) and self.lines[end].startswith("  "):
                    end += 1
                escaped.detail = read_tracer([tracer[0], *self.lines[self.at + 1 : end]])
                self.at = end
        if not found and (match := _STACK_SPOT.match(line)) and match["function"] and not line.startswith("File"):
            escaped.stack.append(_spot(match, None))
            found = True
        return found

    # the leak report

    def _read_leaked(self, line: str) -> bool:
        match = _LEAKED.search(line)
        if match is None:
            return False
        name = re.search(r"(\w+)\)?$", match["name"])
        trace = name[1] if name and match["what"] != "sublevel" else None
        self.found.leaked = LeakedText(trace, [], list(self.found.frames))
        self.error = self.block = None
        self.in_ipython_frame = False
        for text in _IN_A_LIST.findall(match["rest"] or ""):
            self.found.leaked.tracers.append(TracerBlock(read_tracer([text])))
        return True

    def _read_tracer(self, line: str) -> bool:
        leaked = self.found.leaked
        if leaked is None or not (starts_tracer(line) or _SHARD.match(line)) or line.startswith(" "):
            return False
        end, open_ = self.at + 1, open_brackets(line)
        while end < len(self.lines) and end < self.at + 400:
            following = self.lines[end]
            inside = following.startswith(" ") and not _OPERATION.match(following)
            if not (inside or open_ > 0 or (_SHARD.match(line) and following.startswith("["))):
                break
            if read_hop(following) or _CREATED.match(following) or _ORIGIN.search(following):
                break
            open_ += open_brackets(following)
            end += 1
        self.block = TracerBlock(read_tracer(self.lines[self.at : end]))
        if self.block.printed is None and not _SHARD.match(line):
            self.found.unknown += self.lines[self.at : end]
        leaked.tracers.append(self.block)
        self.at = end
        return True

    def _read_origin(self, line: str) -> bool:
        found = False
        if match := _ORIGIN.search(line):
            traced, found = _traced(match), True
            if self.block is not None:
                self.block.traced = traced
            elif self.error is not None:
                self.error.traced = traced
        if match := _ARGUMENTS.search(line):
            found = True
            if self.block is not None:
                self.block.arguments = match["names"]
        if match := _CREATED.match(line.strip()):
            found = True
            if not match["line"] and self.at + 1 < len(self.lines):
                self.at += 1
                match = _STACK_SPOT.match(self.lines[self.at])
                self.at += 1 if match else 0
            if match and self.block is not None:
                self.block.created = _spot(match, None)
        if match := _OPERATION.match(line):
            found = True
            if self.block is not None:
                self.block.operations.append((match["equation"].strip(), None))
        if match := _FROM_LINE.match(line):
            found = True
            if self.block is not None and self.block.operations:
                self.block.operations[-1] = (self.block.operations[-1][0], _spot(match, None))
        return found or bool(_BECAME.search(line) or _MORE_OPERATIONS.match(line.strip()))

    def _read_hop(self, line: str) -> bool:
        if is_unheld(line):
            return True
        hop = read_hop(line)
        end = self.at + 1
        if hop is None:
            return False
        while open_brackets(line) > 0 and end < min(len(self.lines), self.at + 20) and not read_hop(self.lines[end]):
            line += "\n" + self.lines[end]  # a dict's key with line breaks in it
            end += 1
        hop = read_hop(line) if open_brackets(line) == 0 else hop
        if self.found.leaked is None:
            self.found.leaked = LeakedText(None, [], list(self.found.frames))
        if self.block is None or (not self.found.leaked.tracers):
            self.block = TracerBlock()
            self.found.leaked.tracers.append(self.block)
        if hop is not None:
            self.block.hops.append(hop)
        self.at = end if open_brackets(line) == 0 else self.at + 1
        return True


_SPOT_ONLY = re.compile(rf"^\s*{_SPOT}$")


def _lines(text: str) -> list[str]:
    plain = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    lines = plain.split("\n")
    quoted = [line for line in lines if line.strip()]
    if quoted and all(_PREFIX.match(line) for line in quoted):
        return [_PREFIX.sub("", line) for line in lines]
    return [line[1:].removeprefix("   ") if line.startswith("E   ") else line for line in lines]


def _spot(match: re.Match[str], source: str | None) -> Spot:
    groups = match.groupdict()
    file, count = groups.get("file"), groups.get("count")
    named = _INPUT_NAME.fullmatch(file or "")
    number = count or (named[1] if named else None)
    function = groups.get("function")
    return Spot(
        file,
        _int(groups.get("line")) if groups.get("line") else 0,
        _int(groups["column"]) if groups.get("column") else None,
        None if function in (None, "<module>") or function.startswith("<cell line") else function,
        _int(number) if number else None,
        source,
    )


def _traced(match: re.Match[str]) -> Traced:
    what = (match["what"] or "").strip()
    return Traced(match["name"], _spot(match, None), what or None)


def _int(text: str | None) -> int:
    """A number of at most nine digits: the text may hold anything."""
    return int((text or "0")[:9])


def _shape(text: str) -> tuple[int | str, ...]:
    sizes = [size.strip() for size in text.strip("()").split(",") if size.strip()]
    return tuple(_int(size) if size.isdecimal() else size for size in sizes)


def _without_type(line: str) -> str:
    return line.partition(" The tracer has")[0].rstrip()
