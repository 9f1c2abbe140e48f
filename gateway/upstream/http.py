"""The one place that imports the HTTP client library, so that another with the same interface is one line away."""

import httpx

__all__ = ["httpx"]
