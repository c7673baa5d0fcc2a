"""A configuration made of layers: what was set, by whom, and what it comes to with presets and defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from ..core.errors import ConfigError
from .rules import (
    SHORT_NAMES,
    Catalogue,
    Options,
    build,
    checked,
    discovered,
    given_twice,
    options_of,
    overlay,
    unknown_rules,
)
from .sources import (
    CODE,
    VERSION,
    Found,
    Given,
    at,
    explain,
    flatten,
    problem,
    read_overrides,
    read_toml,
    refuse,
    without_secrets,
)
from .values import as_tuple, plain, toml_text, unlinked

if TYPE_CHECKING:
    from ..core.detector import Detector

RuleNames = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class Provenance(NamedTuple):
    """One resolved value and where it came from."""

    key: str
    value: object
    source: str
    """`default`, `preset aggressive`, `healing.toml:7`, `code`, `command line`, or why it follows from another key."""


class LayeredConfig(BaseModel):
    """The machinery of a configuration; its keys are the fields of the subclass.

    Attributes hold resolved values. What was set is kept apart, by path and with its source, and is all that
    `to_dict` and `to_toml` write.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """What each value of the key `preset` sets."""
    implies: ClassVar[Mapping[str, tuple[str, Any]]] = {}
    """Keys that change another key's default by being set: key to (other key, value)."""

    select: RuleNames | None = None
    """The rules that run; all where not set."""
    ignore: RuleNames = ()
    """The rules that do not run, even if selected."""
    rules: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of rules: rule name to option to value."""

    _given: Found = PrivateAttr(default_factory=dict)
    _catalogue: Catalogue | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # type checkers and editors see the fields as keyword arguments

        def __init__(self, /, **values: Any) -> None:
            """Check the values; what is wrong with them is one ConfigError."""
            self._assemble([flatten(values, self._known(), CODE)])

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, catalogue: Catalogue | None = None) -> Self:
        """Return the configuration that `to_dict` described."""
        return cls.load(code=values, catalogue=catalogue)

    @classmethod
    def from_toml(cls, path: str | PathLike[str], *, catalogue: Catalogue | None = None) -> Self:
        """Return the configuration a TOML file describes."""
        return cls.load(toml=path, catalogue=catalogue)

    @classmethod
    def load(
        cls,
        toml: str | PathLike[str] | None = None,
        code: Mapping[str, Any] | LayeredConfig | None = None,
        overrides: Iterable[str] = (),
        *,
        catalogue: Catalogue | None = None,
    ) -> Self:
        """Return what a file, code and `key=value` overrides say together, the later ones winning."""
        layers = [] if toml is None else [read_toml(toml, cls._known())]
        if isinstance(code, LayeredConfig):
            catalogue = code._catalogue if catalogue is None else catalogue  # noqa: SLF001
            layers.append(code._given)  # noqa: SLF001  # our own class; its sources stay known
        elif code is not None:
            layers.append(flatten(code, cls._known(), CODE))
        layers.append(read_overrides(overrides, cls._known()))
        return cls._made(layers, catalogue)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some keys set differently."""
        return self._made([self._given, flatten(changes, self._known(), CODE)], self._catalogue)

    @classmethod
    def _made(cls, layers: Iterable[Found], catalogue: Catalogue | None) -> Self:
        made = cls.__new__(cls)
        made._assemble(layers, catalogue)  # noqa: SLF001  # instead of __init__, which knows one layer only
        return made

    @classmethod
    def _known(cls) -> list[str]:
        """Return the keys that hold one value each: every field but `rules`."""
        return [name for name in cls.model_fields if name != "rules"]

    @classmethod
    def _preset(cls, found: Found) -> Found:
        """Return what the preset named among the values sets, with the preset as its source."""
        name = found[("preset",)].value if ("preset",) in found else None
        values = cls.presets.get(name, {}) if isinstance(name, str) else {}
        return {(key,): Given(value, f"preset {name}") for key, value in values.items()}

    def _assemble(self, layers: Iterable[Found], catalogue: Catalogue | None = None) -> None:
        """Fold the layers into one, check every value, and remember what was set and where."""
        found: Found = {}
        for layer in layers:
            refuse(given_twice(layer))
            found = overlay(found, layer)
        values = {path[0]: given.value for path, given in (self._preset(found) | found).items() if len(path) == 1}
        for key, (other, value) in self.implies.items():
            if key in values:
                values.setdefault(other, value)
        problems: list[str] = []
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong_by_key = _sentences(error, found)
            problems += wrong_by_key.values()
            found = {path: given for path, given in found.items() if path[0] not in wrong_by_key}
        found, wrong = self._check_rules(found, catalogue)
        refuse(problems + wrong)
        self._catalogue = catalogue
        self._given = {}
        for path, given in found.items():
            own = len(path) > 1
            self._given[path] = given if own else Given(getattr(self, path[0]), given.source)
            if own:
                self.rules.setdefault(path[1], {})[path[2]] = given.value
        self.__dict__ |= {field: given.value for field, given in self._agreeing().items()}

    def _check_rules(self, found: Found, catalogue: Catalogue | None) -> tuple[Found, list[str]]:
        """Return what was set with the rules' options as the rules want them, and what is wrong with them."""
        if not any(path[0] in ("rules", "select", "ignore", *SHORT_NAMES) for path in found):
            return found, []  # the catalogue is not loaded where it is not needed
        rules = discovered() if catalogue is None else catalogue
        named = [(path[1], f"{at(given.source)}[rules] ") for path, given in found.items() if path[0] == "rules"]
        for key in ("select", "ignore"):
            if given := found.get((key,)):
                named += [(name, f"{at(given.source)}{key}: ") for name in as_tuple(given.value) or ()]
        problems = unknown_rules(named, rules)
        clean = {path: given for path, given in found.items() if len(path) != len(("rules", "of-an-empty-table"))}
        options = options_of(self._preset(found) | clean)
        for rule in (name for name in options_of(clean) if name in rules):
            values, wrong = checked(rules[rule], options[rule])
            problems += wrong
            for name, value in values.items():
                path = ("rules", rule, name)
                if path in clean:
                    clean[path] = clean[path]._replace(value=value)
        return clean, problems

    def _options(self) -> Options:
        return options_of(self._preset(self._given) | self._given)

    def _agreeing(self) -> dict[str, Given]:
        """Return the short names not set themselves whose rules' options all were, to one and the same value."""
        options = self._options()
        agreed = {}
        for field, targets in SHORT_NAMES.items():
            given = [options[rule][name].given for rule, name in targets if name in options.get(rule, {})]
            complete = len(given) == len(targets) and all(one.value == given[0].value for one in given)
            if complete and (field,) not in self._given:
                agreed[field] = given[0]
        return agreed

    # Reading

    def to_dict(self) -> dict[str, Any]:
        """Return what was set, and nothing else: `from_dict(c.to_dict())` behaves as `c`."""
        values: dict[str, Any] = {"v": VERSION}
        for path, given in self._given.items():
            table = values.setdefault("rules", {}).setdefault(path[1], {}) if len(path) > 1 else values
            table[path[-1]] = unlinked(given.value)
        return values

    def to_toml(self, path: str | PathLike[str] | None = None) -> str:
        """Return what was set as TOML, and write it to a file where a path is given."""
        text = toml_text(self.to_dict())
        if path is not None:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
        return text

    def resolved(self) -> dict[str, Any]:
        """Return every value, set or not, as plain JSON types: what the ledger's first line holds."""
        values = {name: plain(getattr(self, name)) for name in self._known()}
        tables = {rule.name(): {name: plain(getattr(rule, name)) for name in rule.options()} for rule in self._all()}
        return {"v": VERSION, **values, "rules": tables}

    def provenance(self) -> list[Provenance]:
        """Return every value with where it came from, in the order of the fields and of the catalogue."""
        known = self._preset(self._given) | {(key,): given for key, given in self._agreeing().items()} | self._given
        implied = {other: f"{key} is set" for key, (other, _) in self.implies.items() if (key,) in known}
        rows = []
        for name in self._known():
            source = known[(name,)].source if (name,) in known else implied.get(name, "default")
            rows.append(Provenance(name, getattr(self, name), source))
        options = self._options()
        for rule in self._all():
            given = options.get(rule.name(), {})
            for name in rule.options():
                source = given[name].given.source if name in given else "default"
                rows.append(Provenance(f"rules.{rule.name()}.{name}", getattr(rule, name), source))
        return rows

    def build_rules(self, catalogue: Catalogue | None = None) -> tuple[Detector, ...]:
        """Return the rules that run, with their options, each knowing which of them were set."""
        running = self._running(catalogue)
        return tuple(rule for rule in self._all(catalogue) if rule.name() in running)

    def runs_rule(self, name: str) -> bool:
        """Say whether a rule runs: it may be ignored, or not be selected."""
        return name in self._running()

    def _rules_known(self, catalogue: Catalogue | None = None) -> Catalogue:
        known = self._catalogue if catalogue is None else catalogue
        return discovered() if known is None else known

    def _running(self, catalogue: Catalogue | None = None) -> frozenset[str]:
        """Return the names of the rules that run."""
        known = frozenset(self._rules_known(catalogue))
        return (known if self.select is None else known & frozenset(self.select)) - frozenset(self.ignore)

    def _all(self, catalogue: Catalogue | None = None) -> list[Detector]:
        """Build every rule of the catalogue, also those that do not run."""
        options = self._options()
        problems: list[str] = []
        built = []
        for name, rule in self._rules_known(catalogue).items():
            values, wrong = checked(rule, options.get(name, {}))
            problems += wrong
            if not wrong:
                # A preset chooses values; only what a person wrote makes a fixed threshold a trigger.
                own = {key for key in values if not options[name][key].given.source.startswith("preset")}
                built.append(build(rule, values, own))
        refuse(problems)
        return built

    # What pydantic would do otherwise

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse changes of a field in one sentence."""
        if name in type(self).model_fields:
            raise ConfigError(f"{name} cannot be changed: a configuration is frozen, use replace({name}=...)")
        super().__setattr__(name, value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; updates are checked like everything else."""
        return self.replace(**(update or {}))

    def __eq__(self, other: object) -> bool:
        """Compare what was set, not where it was written."""
        return type(other) is type(self) and isinstance(other, LayeredConfig) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Hash by the keys that were set."""
        return hash(frozenset(self._given))

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        """Show what was set."""
        return [(key, without_secrets(key, value)) for key, value in self.to_dict().items() if key != "v"]


def _sentences(error: ValidationError, found: Found) -> dict[str, str]:
    """Return pydantic's errors, one sentence per key, with the place where the key was set."""
    by_key: dict[str, list[Any]] = {}
    for one in error.errors(include_url=False):
        by_key.setdefault(str(one["loc"][0]), []).append(one)
    return {key: problem((key,), found[(key,)], explain(errors)) for key, errors in by_key.items()}
