"""The check `build-with-make`: llama.cpp built by `make`, which it no longer supports."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.build_steps import is_about_llama_cpp, steps_of
from ..subject import Subject
from ..tools import Tools

_RUN = "import subprocess\n"


class BuildWithMake(Check):
    """llama.cpp is built by CMake.

    Its Makefile does nothing any more but end with `Build system changed: The Makefile build has been replaced by CMake`.
    CMake also works the same on every machine.
    """

    passes = (
        Example(
            _RUN + "subprocess.run(['cmake', '--build', 'llama.cpp/build', '--target', 'llama-quantize'], check=True)\n"
        ),
        Example(_RUN + "subprocess.run(['make', '-C', 'my-kernels'], check=True)\n"),
        Example("import os\nos.system('cd llama.cpp && cmake -B build && make -C build')\n"),
    )
    fails = (
        Example(_RUN + "subprocess.run(['make', '-C', '/tmp/llama.cpp', 'llama-quantize'], check=True)\n"),
        Example("import os\nos.system('cd llama.cpp && make -j')\n"),
        Example(_RUN + "subprocess.run('make', cwd='llama.cpp', shell=True, check=True)\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for make where nothing has called CMake."""
        for script in subject.scripts:
            steps = list(steps_of(script))
            if any(step.program == "cmake" for step in steps):
                continue
            for step in steps:
                if step.program in ("make", "gmake") and is_about_llama_cpp(script, step):
                    root = _root([word for each in steps for word in each.words])
                    yield self.error(
                        Place(script.named, step.started.call.line), "llama.cpp cannot be built by make any more",
                        f"Build it by CMake; the programs are then in {root}/build/bin:\n"
                        f'subprocess.run(["cmake", "-B", "{root}/build", "-S", "{root}", "-DGGML_CUDA=OFF"], check=True)\n'
                        f'subprocess.run(["cmake", "--build", "{root}/build", "--target", "llama-quantize", "-j", "4"], check=True)',
                    )  # fmt: skip


def _root(words: list[str]) -> str:
    """Return the folder of llama.cpp as the script's own commands name it."""
    folders = (word.rstrip("/") for word in words if "://" not in word)
    return next((word for word in folders if word.endswith("llama.cpp")), "llama.cpp")
