"""The check `outdated-llama-cpp-path`: programs of llama.cpp where they used to be."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.build_steps import Step, steps_of
from ..subject import Script, Subject
from ..tools import Tools

_RUN = "import subprocess\n"
_BUILD = _RUN + "subprocess.run(['cmake', '--build', '/tmp/llama.cpp/build'], check=True)\n"
_SCRIPTS = {"convert-hf-to-gguf.py": "convert_hf_to_gguf.py", "convert.py": "convert_hf_to_gguf.py"}
_PROGRAMS = {"quantize": "llama-quantize", "main": "llama-cli", "server": "llama-server", "imatrix": "llama-imatrix"}


class OutdatedLlamaCppPath(Check):
    """Programs of llama.cpp are called where a CMake build puts them, by the names they have now.

    CMake writes to `build/bin`; `quantize` is called `llama-quantize`, and `convert.py` `convert_hf_to_gguf.py`. Other paths
    end with `FileNotFoundError`, after everything has been built.
    """

    passes = (
        Example(
            _BUILD + "subprocess.run(['/tmp/llama.cpp/build/bin/llama-quantize', 'a', 'b', 'Q4_K_M'], check=True)\n"
        ),
        Example(_RUN + "subprocess.run(['python', 'llama.cpp/convert_hf_to_gguf.py', 'model'], check=True)\n"),
        Example(_BUILD + "subprocess.run(['llama-quantize', 'a', 'b', 'Q4_K_M'], check=True)\n"),
    )
    fails = (
        Example(_BUILD + "subprocess.run(['/tmp/llama.cpp/llama-quantize', 'a', 'b', 'Q4_K_M'], check=True)\n"),
        Example(_BUILD + "subprocess.run(['/tmp/llama.cpp/build/bin/quantize', 'a', 'b', 'Q4_K_M'], check=True)\n"),
        Example(_RUN + "subprocess.run(['python', 'llama.cpp/convert-hf-to-gguf.py', 'model'], check=True)\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the commands that name llama.cpp."""
        for script in subject.scripts:
            steps = list(steps_of(script))
            is_built = any(step.program == "cmake" and "--build" in step.words for step in steps)
            has_own_place = any(
                "OUTPUT_DIRECTORY" in word or "--install" in word for step in steps for word in step.words
            )
            for step in steps:
                yield from self._of_script(script, step)
                if is_built and not has_own_place:
                    yield from self._of_program(script, step, steps)

    def _of_script(self, script: Script, step: Step) -> Iterator[Finding]:
        for word in step.words:
            folder, _, name = word.rpartition("/")
            if "llama.cpp" in folder and name in _SCRIPTS:
                now = f"{folder}/{_SCRIPTS[name]}"
                yield self.error(
                    Place(script.named, step.started.call.line), f"llama.cpp has no {name} any more", f'Call "{now}"'
                )  # fmt: skip

    def _of_program(self, script: Script, step: Step, steps: list[Step]) -> Iterator[Finding]:
        folder, _, name = step.words[0].rpartition("/")
        if "llama" not in folder or not (name.startswith("llama-") or name in _PROGRAMS):
            return
        root = folder.partition("/build")[0]
        right = f"{_build_folder(steps) or f'{root}/build'}/bin/{_PROGRAMS.get(name, name)}"
        if step.words[0] != right and (not folder.endswith("/bin") or name in _PROGRAMS):
            yield self.error(
                Place(script.named, step.started.call.line), f"CMake does not put a program at {step.words[0]}",
                f'Call "{right}"',
            )  # fmt: skip


def _build_folder(steps: list[Step]) -> str:
    """Return the folder that CMake builds in, where it is known."""
    for step in steps:
        if step.program == "cmake" and "--build" in step.words[:-1]:
            folder = step.words[step.words.index("--build") + 1]
            return folder if "?" not in folder and "/" in folder else ""
    return ""
