"""The beam: several ideas kept alive at once, so that a search does not end on the nearest hill.

A family is an idea that several tries are variants of. A ledger has when it was opened and with
what role, whether it is to be kept, and why it was killed; a try of "a+b" is one of both.
"""

from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean

from qrlib.bench.results import short
from qrlib.loop.ledger import append, read
from qrlib.loop.verdicts import group

ROLES = ("exploit", "near miss", "structural", "clean-up")
# what of a factorization's time an idea is about: two of different ones may add up
COSTS = ("panel", "update", "launch", "memory", "other")
# the only reasons that a family may be killed for
REASONS = {
    "incorrect": "it cannot be made correct",
    "regresses": "it is slower again and again, after retuning too",
    "loses combined": "it loses alone and combined with another",
    "no cost": "a profile says that what it saves no longer matters",
    "in the way": "what it costs blocks something better",
}
# so many families are to be alive; so many tries are looked at
FEWEST, MOST, RECENT = 3, 5, 5
# characters of a name
LONGEST = 40
# a change of the time by less than this share is none; a near miss is so near to the record
SMALL, NEAR = 0.02, 0.05


@dataclass
class Family:
    """An idea and its tries. opened: whether somebody has said what it is, beside trying it.
    killed: (a key of REASONS, more), or None. gains: of each try that has a time, over its parent,
    as a share."""

    name: str
    role: str = "exploit"
    cost: str = "other"
    hypothesis: str = ""
    opened: bool = False
    kept: bool = False
    killed: tuple | None = None
    tries: list = field(default_factory=list)
    gains: list = field(default_factory=list)

    @property
    def best(self):
        """Its fastest try, or None."""
        timed = [each for each in self.tries if each.get("geomean_us")]
        return min(timed, key=lambda each: each["geomean_us"], default=None)

    @property
    def conclusive(self):
        return [each for each in self.tries if group(each["verdict"]) != "inconclusive"]

    @property
    def neutral(self):
        """Whether it was tried, and no try of it alone changed the time by much."""
        return bool(self.gains) and all(abs(gain) < SMALL for gain in self.gains)

    @property
    def combined(self):
        return any("+" in each["family"] for each in self.tries)


def families(log, basis=None):
    """[Family] of a Log, in the order in which they came; those killed too."""
    found, scored = {}, {each["id"] for each in log.scored(basis)}
    for each in log.entries:
        names = (each.get("family") or "").split("+")
        for name in filter(None, names):
            family = found.setdefault(name, Family(name))
            if each["kind"] == "try":
                timed = each["id"] in scored
                family.tries.append(each if timed else each | {"geomean_us": None})
                if timed and len(names) == 1 and (gain := _gain(log, each, basis)) is not None:
                    family.gains.append(gain)
                continue
            if each["event"] == "kill":
                family.killed = each["reason"], each["because"]
            elif each["event"] == "keep":
                family.kept = True
            else:
                family.opened, family.killed = True, None
                for key in ("role", "cost", "hypothesis"):
                    setattr(family, key, each[key])
    return list(found.values())


def _gain(log, entry, basis):
    """By which share a try is faster than its parent, or than the record when it came."""
    before = [each for each in log.scored(basis) if each["id"] < entry["id"]]
    parent = entry.get("parent")
    own = [each for each in before if parent and parent in (each["candidate"], f"#{each['id']}")]
    rival = own[-1] if own else min(before, key=lambda each: each["geomean_us"], default=None)
    return rival and rival["geomean_us"] / entry["geomean_us"] - 1


def warnings(log):
    """Sentences: what of the beam needs a decision."""
    alive = [each for each in families(log) if not each.killed]
    said, verb = list(log.damaged), "is" if len(alive) == 1 else "are"
    if len(alive) < FEWEST:
        said.append(
            f"{FEWEST} to {MOST} families must be alive; {len(alive)} {verb}: open another one, "
            "even if it is slower at first"
        )
    if len(alive) > MOST:
        said.append(
            f"{FEWEST} to {MOST} families must be alive; {len(alive)} are: kill one, with a reason"
        )
    roles = {each.role for each in alive}
    for role in ("exploit", "near miss", "structural"):
        if alive and role not in roles:
            said.append(f"one family at least must have the role {role}; none has it")
    if alive and roles == {"clean-up"}:
        said.append("clean-up is for between other work; nothing else is alive")
    recent = [each for each in log.scored() if each.get("family")][-RECENT:]
    us = [each["geomean_us"] for each in recent]
    if len(recent) == RECENT and len({each["family"] for each in recent}) == 1:
        if max(us) - min(us) < SMALL * mean(us):
            said.append(
                f"the last {RECENT} tries are small variants of {recent[0]['family']}, within "
                f"{100 * SMALL:g} % of each other: this is the top of its hill; try another family"
            )
    last = log.tries[-RECENT:]
    if len(last) == RECENT and all(group(each["verdict"]) == "inconclusive" for each in last):
        said.append(
            f"the last {RECENT} tries were inconclusive: look at the limits and the machine, "
            "not at the ideas"
        )
    return said


def pairs(log):
    """[(Family, Family)]: neutral ideas about different costs that nobody has put together."""
    neutral = [each for each in families(log) if each.neutral and not each.killed]
    named = [each.get("family") or "" for each in log.tries]
    tried = {frozenset(family.split("+")) for family in named if "+" in family}
    return [
        (a, b)
        for a, b in combinations(neutral, 2)
        if a.cost != b.cost and not any({a.name, b.name} <= names for names in tried)
    ]


def near_misses(log):
    """[Family]: those near the record without it, and those that are to be kept."""
    record = log.record()
    best = record[-1] if record else None
    return [
        each
        for each in families(log)
        if not each.killed
        and (
            each.kept
            or each.best
            and each.best["id"] != best["id"]
            and each.best["geomean_us"] < (1 + NEAR) * best["geomean_us"]
        )
    ]


def board(log):
    """Lines: the record, the families by role, and what is to be done."""
    record = log.record()
    yield f"{len(log.tries)} tries; " + (
        f"the record is #{record[-1]['id']} {record[-1]['candidate']}, "
        f"{short(record[-1]['geomean_us'])} us, {record[-1]['basis']}"
        if record
        else "none has a score yet"
    )
    found = families(log)
    near = {each.name for each in near_misses(log)}
    for role in ROLES:
        mine = [each for each in found if each.role == role and not each.killed]
        if mine:
            yield role
        for each in mine:
            best = f"best {short(each.best['geomean_us'])} us" if each.best else "no time yet"
            marks = ", near the record" * (each.name in near and not each.kept) + ", kept" * (
                each.kept
            )
            tries = f"{len(each.tries)} tr{'y' if len(each.tries) == 1 else 'ies'}"
            yield f"  {each.name:20} {each.cost:8} {tries}, {best}{marks}"
            if each.hypothesis:
                yield f"    {each.hypothesis}"
    if killed := [each for each in found if each.killed]:
        yield "killed"
        for each in killed:
            reason, because = each.killed
            yield f"  {each.name:20} {REASONS[reason]}: {because}"
    for a, b in pairs(log):
        yield (
            f"not combined so far: {a.name} ({a.cost}) and {b.name} ({b.cost}), each neutral alone"
        )
    yield from (f"warning: {sentence}" for sentence in warnings(log))


def check_names(family):
    """Raises ValueError unless a family has a name, or names with + between them."""
    for name in family.split("+"):
        if not (name.strip() and name.isprintable() and len(name) <= LONGEST):
            raise ValueError(
                f"a family must have a name of at most {LONGEST} characters in one line, without "
                f"+, which joins two; got {family!r:.80}"
            )


def open_family(path, name, *, role=None, cost=None, hypothesis=None):
    """Add a family, or bring one back, or say something else of one that is alive.

    Args:
        role, cost, hypothesis: what is None stays as it was; of a new one it is exploit, other and
            nothing.

    Raises:
        ValueError: no such role or cost; it is alive, and nothing is said of it.
    """
    check_names(name)
    if "+" in name:
        raise ValueError(f"a family must have a name without +, which joins two; got {name!r}")
    for what, value, known in (("role", role, ROLES), ("cost", cost, COSTS)):
        if value not in (None, *known):
            raise ValueError(f"{what} must be one of {', '.join(known)}; got {value!r}")
    known = {each.name: each for each in families(read(path))}.get(name, Family(name))
    was = {key: getattr(known, key) for key in ("role", "cost", "hypothesis")}
    said = {"role": role, "cost": cost, "hypothesis": hypothesis}
    said = {key: value for key, value in said.items() if value is not None}
    about = was | said
    # the same said again, as by a cell of a notebook, does no harm
    if known.opened and not known.killed and not said:
        raise ValueError(
            f"{name} is open already: role {known.role}, cost {known.cost}, hypothesis "
            f"{known.hypothesis!r}; give what is to be another of these, or another name"
        )
    return append(path, "family", event="open", family=name, **about)


def keep(path, name, because):
    """A near miss is to be kept."""
    _alive(path, name)
    return append(path, "family", event="keep", family=name, because=_said(because))


def kill(path, name, reason, because):
    """End a family.

    Args:
        reason: a key of REASONS. because: what was seen.

    Raises:
        ValueError: there is too little against it.
    """
    family = _alive(path, name)
    if reason not in REASONS:
        known = "; ".join(f"{key}: {words}" for key, words in REASONS.items())
        raise ValueError(f"a family is killed for one of these reasons: {known}; got {reason!r}")
    _said(because)
    if reason in ("regresses", "loses combined") and len(family.conclusive) < 2:
        raise ValueError(
            f"two conclusive tries at least must speak against {name}; there "
            f"{'is one' if family.conclusive else 'are none'}: a single failure is none of an idea"
        )
    if reason == "loses combined" and not family.combined:
        raise ValueError(f"{name} must have been combined with another; try {name}+another first")
    gains = [gain for gain in family.gains if gain > SMALL]
    if reason == "regresses" and len(gains) > 1:
        raise ValueError(
            f"{name} has gained {len(gains)} times, so it is a near miss; combine it before "
            "it is killed"
        )
    return append(path, "family", event="kill", family=name, reason=reason, because=because)


def _alive(path, name):
    found = {each.name: each for each in families(read(path)) if not each.killed}
    if name not in found:
        raise ValueError(
            f"a family must be alive; got {name!r}, alive are: {', '.join(found) or 'none'}"
        )
    return found[name]


def _said(because):
    if not because or not because.strip():
        raise ValueError("a decision must say what was seen; got nothing: --because '...'")
    return because
