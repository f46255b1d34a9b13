"""Running cells in a real kernel, with everything that it sends."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Reply:
    """What one cell gave: the reply's content and the output messages."""

    content: dict[str, Any] = field(default_factory=dict)
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.content["status"]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.messages if kind not in ("status", "execute_input")]

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [content for kind, content in self.messages if kind in kinds]

    @property
    def text(self) -> str:
        return "".join(content["text"] for content in self.of_kind("stream"))

    @property
    def value(self) -> str | None:
        results = self.of_kind("execute_result")
        return results[0]["data"]["text/plain"] if results else None

    @property
    def report(self) -> dict[str, str]:
        """The bundle of the report."""
        (shown,) = self.of_kind("display_data")
        return shown["data"]

    @property
    def traceback(self) -> str:
        (error,) = self.of_kind("error")
        return _COLOUR.sub("", "\n".join(error["traceback"]))


class Kernel:
    """A kernel and a client that acts as a notebook does."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(startup_timeout=120)

    def run(self, code: str, cell_id: str | None = None, interrupt_when: str | None = None) -> Reply:
        """Run a cell.

        Args:
            code: its text.
            cell_id: the id that a notebook front end would send; None as nbclient does.
            interrupt_when: interrupt the kernel when the cell has printed this.
        """
        message = self.client.session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": True,
            },
            metadata={"cellId": cell_id} if cell_id else {},
        )
        self.client.shell_channel.send(message)
        reply = Reply()
        while True:
            got = self.client.get_iopub_msg(timeout=120)
            if got["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            reply.messages.append((got["msg_type"], got["content"]))
            if interrupt_when and interrupt_when in reply.text:
                interrupt_when = None
                self.manager.interrupt_kernel()
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                break
        while True:
            got = self.client.get_shell_msg(timeout=120)
            if got["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                reply.content = got["content"]
                break
        if reply.content["status"] == "aborted":  # it came while the kernel still cleared its queue after an error
            return self.run(code, cell_id, interrupt_when)
        return reply

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
