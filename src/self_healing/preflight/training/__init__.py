"""What checks of the configuration share: the arguments of each training, and facts about the libraries that read them."""

from .arguments import Training, trainings
from .processes import process_count

__all__ = ["Training", "process_count", "trainings"]
