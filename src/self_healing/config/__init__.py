"""What users configure: validated by pydantic here, handed to the core as plain `Settings` and rules."""

from .keys import ConfigWarning, HealingConfig
from .layers import Provenance

__all__ = ["ConfigWarning", "HealingConfig", "Provenance"]
