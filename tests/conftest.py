"""In our own tests a bug of ours is raised where it would be noted and survived in a user's run."""

import os

os.environ["SELF_HEALING_STRICT"] = "1"
