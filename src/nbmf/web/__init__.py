"""Serving a model: its answers as plain data (views), the HTTP API, and the page that a browser shows."""
