"""Rendering a `Report`: plain text, static HTML, a Graphviz graph, a widget. Imports nothing heavy by itself."""
