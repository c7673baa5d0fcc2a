"""The Hub, asked with limits: every question has an answer of a known kind, also where the Hub gives none."""

from .answers import Answer, Listing, References, Repository, State, User
from .hub import Hub, is_name

__all__ = ["Answer", "Hub", "Listing", "References", "Repository", "State", "User", "is_name"]
