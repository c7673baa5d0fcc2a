"""What is to be run, as one value: read from scripts, configs, a command, or a trainer that is built."""

from ..finding import Place
from .command import Command
from .config import Config
from .script import Call, Import, Script
from .subject import Subject, read_subject
from .values import UNKNOWN, Kind, Reference, Setting, Value

__all__ = [
    "UNKNOWN",
    "Call",
    "Command",
    "Config",
    "Import",
    "Kind",
    "Place",
    "Reference",
    "Script",
    "Setting",
    "Subject",
    "Value",
    "read_subject",
]
