"""Sluice: one endpoint in front of all the language-model engines a person or a team runs themselves."""

__version__ = "0.1.0"
