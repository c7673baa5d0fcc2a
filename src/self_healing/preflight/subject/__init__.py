"""What is to be run, as one value: read from scripts, configs, a command, or a trainer that is built."""

from ..finding import Place
from .command import Command
from .config import Config
from .environment import EnvironmentRead
from .jobs import DEFAULT_TIMEOUT_S, Job
from .reading import read_subject
from .script import Call, Import, Script, SetAttribute
from .subject import Subject
from .values import UNKNOWN, Kind, Reference, Setting, Value

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "UNKNOWN",
    "Call",
    "Command",
    "Config",
    "EnvironmentRead",
    "Import",
    "Job",
    "Kind",
    "Place",
    "Reference",
    "Script",
    "SetAttribute",
    "Setting",
    "Subject",
    "Value",
    "read_subject",
]
