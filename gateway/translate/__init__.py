"""Translators between the dialects of clients and engines.

OpenAI's chat dialect is the middle: an engine that speaks another is read into it (`openai_ollama.py`), a client that
speaks another is served from it (`anthropic_openai.py`). Each works on bytes, so that a stream can pass any of them.
"""
