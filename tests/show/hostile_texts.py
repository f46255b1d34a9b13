"""Texts that try to be more than text in HTML, SVG, DOT or a terminal, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

_PIECES = st.sampled_from(
    [
        *(
            "<script>alert(1)</script>",
            "</script>",
            "<img src=x onerror=alert(1)>",
            "<svg onload=alert(1)>",
            "</style>",
        ),
        *(
            "javascript:alert(1)",
            "data:text/html,x",
            '" onclick="alert(1)',
            "' onfocus='alert(1)",
            "<!--",
            "-->",
            "]]>",
        ),
        *("&lt;b&gt;", "&#60;b&#62;", "<b>", "</div>", "<a href=javascript:alert(1)>", "`", "``", "<%", "{{", "${1}"),
        *("\x1b[31m", "\x1b]8;;http://x\x07", "\u202e", "\ud800", "\x00", "\r", "\n", "\t", "\\N", "\\", '"', "'"),
        *("https://evil.example/", "<plaintext>", "<iframe srcdoc=x>", "<math><mtext></mtext></math>", "\ufeff", "%"),
    ]
)

hostile_texts = st.lists(_PIECES | st.text(max_size=8), max_size=6).map("".join)
