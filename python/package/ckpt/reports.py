"""The reports of the program and of this package, as dictionaries with types.

``docs/use/json.md`` says the same. This file is written by ``CKPT_WRITE_TABLES=1 cargo test -p rules reports``.
"""

from __future__ import annotations

from typing import Literal, TypedDict

#: How a number came to be known.
Basis = Literal[
    #: Checked here: by a signature, or by a part of a shard that its host was asked for.
    "proved",
    #: Stated by a host or a registry, and not checked.
    "announced",
    #: Observed by this machine itself.
    "seen",
]

#: What `ckpt doctor` checks.
Check = Literal[
    #: The directory that keeps what is learnt of hosts.
    "state_directory",
    #: Free space on the disk.
    "disk",
    #: Limits that the shell sets for the program.
    "limits",
    #: Whether the grid file can be read.
    "grid_file",
    #: Key, certificate and role.
    "identity",
    #: When the certificates end.
    "certificate",
    #: The network path to each host.
    "network",
    #: The clocks of this machine and the hosts.
    "clock",
]

#: What of each shard was checked.
Checked = Literal[
    #: That its host has it, with the hashes of its blocks. No block was read.
    "present",
    #: Also, some of its blocks, which were read.
    "sampled",
    #: Also, all of its blocks, which were read.
    "read",
]

#: How a command ended; the number is its exit status, and is stable.
ExitStatus = Literal[
    #: The command did what it promises.
    "done",
    #: It failed for a reason that has no number of its own; nothing changed.
    "failed",
    #: The command line or a configuration file is wrong.
    "usage",
    #: Done, but not as promised: with less redundancy, as the caller allowed; with warnings; from an older
    #: version than the newest known one; or without the knowledge of all hosts that hold shards. Or something
    #: needs attention (`health`, `doctor`).
    "degraded",
    #: No such job, version or checkpoint.
    "not_found",
    #: Not enough hosts can be reached, now or until `--deadline`; nothing was stored. Try again later.
    "too_few_hosts",
    #: Identity, key or role do not allow it.
    "denied",
    #: Damaged beyond repair: there are shards, but too few of their bytes are right.
    "damaged",
    #: Reading or writing on this machine failed (file, disk full, command).
    "local_io",
    #: There were enough hosts, but not enough time until `--deadline`; the old version is still the newest.
    "deadline",
    #: Another checkpoint follows the one that `save --after` names, or may follow it; nothing changed.
    "another_successor",
    #: Ended by SIGINT; nothing was committed.
    "interrupted",
    #: Ended by SIGTERM; nothing was committed.
    "terminated",
]

#: A family of distributions of positive numbers; a normal distribution has negative ones, too.
Family = Literal[
    #: Parameters: mean, standard deviation.
    "normal",
    #: Parameters: mean and standard deviation of the natural logarithm.
    "lognormal",
    #: Parameter: mean.
    "exponential",
    #: Parameters: shape, scale.
    "weibull",
    #: Parameters: shape, scale.
    "gamma",
]

#: Whether a host can be used.
HostState = Literal[
    #: It answers and takes shards.
    "up",
    #: It answers, and takes no new shards for now.
    "stands_back",
    #: It answers, and has no room.
    "full",
    #: It does not answer.
    "down",
    #: It is a member of the grid that no registry hears, and that was not asked.
    "silent",
]

#: How the content of a path was set aside.
How = Literal[
    #: The path itself was moved.
    "taken",
    #: By further names of the same files.
    "linked",
    #: By copies that share their blocks.
    "shared",
    #: By copies.
    "copied",
]

#: What is done with a job.
JobState = Literal[
    #: It is being restored, or a host for it is awaited.
    "starting",
    #: It runs.
    "running",
    #: It is stopped for the machine's owner.
    "stopped_for_owner",
    #: It is being saved.
    "saving",
    #: It has to leave the machine.
    "leaving",
    #: It has ended or is being ended.
    "ending",
]

#: Kinds of what needs attention, the worst first.
Kind = Literal[
    #: Hosts that are away, if something is lacking: the cause of what follows.
    "hosts_away",
    #: A checkpoint that can't be restored now.
    "not_restorable",
    #: A checkpoint that this machine has seen and that no host shows.
    "not_found",
    #: Too few hosts answer or take shards.
    "too_few_hosts",
    #: A key or certificate ends soon, or has ended.
    "ends",
    #: A checkpoint has fewer shards than it should.
    "below_redundancy",
    #: A lease ends soon, or is over.
    "lease_ends",
    #: A job was not saved for longer than it should be.
    "not_saved",
    #: Registries that do not answer.
    "registry_silent",
    #: Hosts lost or damaged what they took.
    "failed_checks",
    #: A clock differs from most others.
    "clock",
    #: Programs of different versions.
    "versions",
]

#: Why a host takes a shard only when there are too few others.
ReserveReason = Literal[
    #: The host has no room.
    "no_room",
    #: The host announced that it takes no shards at present.
    "refuses",
    #: The job itself runs on it.
    "compute_host",
]

#: The verdict of a check.
Verdict = Literal[
    #: It is as it should be.
    "good",
    #: It is not as it should be.
    "bad",
]


class AdviseReport(TypedDict):
    """Answer of `ckpt plan when`."""

    #: Work that the job has to do, seconds.
    job_seconds: float
    #: Cost of one checkpoint: the time for which it holds the job up, seconds.
    cost_seconds: float
    #: Where this cost comes from.
    cost_source: str
    #: Least time between two checkpoints, seconds: the time until one is stored.
    least_seconds: float
    #: Where the failure rate comes from.
    hazard: str
    #: Probability that the machine stays reachable for as long as the job takes. The owner's load does not
    #: count, because it ends no job; `stays_10h` of `hosts` is the same probability for ten hours.
    survives_job: float
    #: The mean time between failures that gives the same probability, seconds; None if more than a year.
    mtbf_seconds: float | None
    #: Time until the next checkpoint by the accumulator rule, seconds; None if no checkpoint is worth its
    #: cost.
    first_seconds: float | None
    #: Young's interval for that mean time between failures, seconds; None if more than a year.
    young_seconds: float | None
    #: Daly's interval for that mean time between failures, seconds; None if more than a year.
    daly_seconds: float | None
    #: Expected time to the end of the job with checkpoints at Daly's interval, seconds; None if more than a
    #: year.
    makespan_seconds: float | None
    #: Expected time to the end of the job without checkpoints, seconds; None if more than a year.
    makespan_without_seconds: float | None
    #: When to take checkpoints if nothing fails, seconds from now; at most 1000 of them.
    checkpoints: list[float]
    #: What the user should know of the machine.
    notes: list[str]


class Attention(TypedDict):
    """Something that needs attention."""

    #: The kind, for programs.
    kind: Kind
    #: The job, host, registry or key that needs attention.
    about: str
    #: What is wrong, in a sentence.
    what: str
    #: What to do about it.
    remedy: str | None


class AwayReport(TypedDict):
    """Answer of `ckpt run --on`, on standard error."""

    #: Name of the job.
    job: str
    #: Exit status of `ckpt run`.
    exit_code: int
    #: Whose decision the end was: `job` or `supervisor`.
    ended_by: str
    #: The reason for which the run ended.
    why: str
    #: The host on which the job was at the end; None if it was on none, or if that is unknown.
    host: str | None
    #: The version that was restored here, or the newest one, from which the next start goes on; None if
    #: unknown.
    version: int | None
    #: The hosts on which this process started or found the job, in order.
    hosts: list[str]
    #: How often the job was started on a host, by earlier processes as well.
    starts: int
    #: For each move that this process has seen: seconds from the last report that the job ran undisturbed to
    #: the first one from the next host.
    moves_seconds: list[float]
    #: Number of files of the working directory that are new or different; None if nothing was restored.
    changed_files: int | None
    #: Paths under which this machine's copies lie of files that were changed both here and by the job.
    aside: list[str]
    #: The directory with hidden files, programs and links to elsewhere that the job made or changed, which
    #: were not put in their places; None when there are none.
    held_back: str | None
    #: Path of the journal.
    journal: str
    #: What the user should know, in whole sentences.
    warnings: list[str]


class BackupReport(TypedDict):
    """Answer of `ckpt grid backup` and `ckpt grid restore`."""

    #: Directory of the authority.
    dir: str
    #: The copy.
    file: str
    #: Names of the files in the copy.
    files: list[str]
    #: Number of the list of the grid.
    list: int
    #: After a restore: how many members answered.
    members_asked: int | None
    #: After a restore: whether members had a newer list.
    was_behind: bool | None


class BadShard(TypedDict):
    """A shard that is missing or damaged."""

    #: Number of the shard.
    shard: int
    #: The host that announced it; None if no host that answers has it.
    host: str | None
    #: What is wrong with the shard.
    what: str


class BestStart(TypedDict):
    """When to start a job."""

    #: The hour, as its number in `hours`.
    hour: int
    #: How many hours that is from now.
    in_hours: int


class CatReport(TypedDict):
    """Answer of `ckpt cat`."""

    #: Name of the job.
    job: str
    #: The version that was read.
    version: int
    #: Path of the file in the image; empty for a stream.
    path: str
    #: Offset of the first byte in the file.
    offset: int
    #: Bytes that were written.
    bytes: int
    #: Whether all bytes asked for were written; false if the reader of standard output closed it early.
    complete: bool
    #: Bytes of blocks that came from hosts.
    fetched_bytes: int
    #: How many rows these blocks belong to.
    fetched_rows: int
    #: Seconds from start to end.
    seconds: float
    #: Newer versions that could not be read, and why. The exit status is 3 when there are any.
    skipped: list[SkippedVersion]
    #: What the user should know.
    warnings: list[str]


class CauseLine(TypedDict):
    """Failures of one cause."""

    #: `S3` (the owner takes the processor), `S4` (no memory for a guest) or `S5` (gone).
    state: str
    #: Number of failures of this cause.
    failures: int
    #: Share of all failures.
    share: float
    #: Fewest and most failures of this cause of a host.
    per_host: list[int]
    #: Least and largest share of a host's failures that have this cause; None if no host fails.
    share_per_host: list[float] | None
    #: Share of the known time that hosts spend in this state.
    time_share: float


class Compressed(TypedDict):
    """Segments of an image that were compressed in one way."""

    #: `raw`; `zstd`; `shuffled`: zstd after bytes were sorted by their place in eight; `planes`: numbers in
    #: planes.
    method: str
    #: Number of the segments.
    segments: int
    #: Their bytes before compression.
    bytes: int
    #: Their bytes after compression.
    stored_bytes: int


class ControlFound(TypedDict):
    """A way to hold a job back."""

    #: Name of this way of holding back.
    name: str
    #: Whether it works here.
    works: bool
    #: How it was tried, or why it fails.
    what: str


class DelegateReport(TypedDict):
    """Answer of `ckpt grid delegate`."""

    #: Name of the registry.
    registry: str
    #: The roles that it may certify.
    roles: list[str]
    #: When its certificate for that ends, Unix seconds.
    expires: int
    #: That certificate's file.
    certificate: str


class DemoReport(TypedDict):
    """Answer of `ckpt demo PATH`."""

    #: The report of the save.
    save: SaveReport
    #: The report of the restore.
    restore: RestoreReport
    #: Names of the hosts that were killed between them.
    killed: list[str]
    #: Whether what was restored equals what was saved.
    identical: bool
    #: Seconds from start to end.
    seconds: float


class DetachedReport(TypedDict):
    """Answer of `ckpt save --detach`."""

    #: Name of the job.
    job: str
    #: The number of the image in the job's queue.
    number: int
    #: How it was set aside.
    how: How
    #: Bytes of its files, which the spool keeps until they are saved.
    bytes: int


class DoctorReport(TypedDict):
    """Answer of `ckpt doctor`."""

    #: The findings, in the order of the checks.
    findings: list[Finding]


class DownReport(TypedDict):
    """Answer of `ckpt grid down`."""

    #: Names of the hosts that were stopped.
    stopped: list[str]
    #: Hosts that did not end in time.
    still_running: list[str]


class EvictionReport(TypedDict):
    """Answer of `ckpt demo`."""

    #: Steps that the job had to compute.
    steps: int
    #: The last step on the machine that was taken away.
    evicted_after: int
    #: The version from which the job went on.
    version: int | None
    #: The first step on the other machine.
    went_on_at: int
    #: Steps that were computed twice.
    computed_twice: int
    #: The hosts that were killed meanwhile.
    killed: list[str]
    #: Seconds from start to end.
    seconds: float


class Failure(TypedDict):
    """Why a command failed: what failed, the part of each host in it, and what to do next."""

    #: The exit status of the command.
    status: ExitStatus
    #: What failed and why, as one sentence that names the thing.
    message: str
    #: The part of each host in the failure: each host once, in the order of the grid.
    hosts: list[HostNote]
    #: What holds nevertheless, such as `version 17 is still the newest`, or `did you mean job 42?`.
    state: str | None
    #: What the user can try next.
    next: str | None
    #: Only for a save with `--after`. With exit status 10: the version that follows the named one, or may
    #: follow it. Otherwise: the save's own version, if the save was left half done and may still be
    #: committed.
    successor: SuccessorNote | None


class FenceReport(TypedDict):
    """How a save with `--after` was fenced against another successor."""

    #: The version that it follows.
    after: int
    #: The id of that version.
    after_checkpoint: str
    #: Whether the witnesses of that version were asked; false with `--unfenced`.
    fenced: bool
    #: How many witnesses that version has.
    witnesses: int
    #: How many of them had to agree.
    needed: int
    #: How many are known to have agreed.
    agreed: int


class FinalReport(TypedDict):
    """What was forecast of a final checkpoint, and what came of it."""

    #: Seconds between the need to leave and the end.
    grace_seconds: float
    #: Seconds that the checkpoint was expected to take.
    expected_seconds: float
    #: The probability with which it was expected to be in time, 0 to 1.
    chance: float
    #: Seconds that the checkpoint took; None if it was not committed.
    took_seconds: float | None


class Finding(TypedDict):
    """The result of one check."""

    #: The check that was made.
    check: Check
    #: How the check came out.
    verdict: Verdict
    #: What the check found, for people.
    what: str
    #: What helps, if the verdict is bad.
    remedy: str | None


class FitLine(TypedDict):
    """A fitted distribution."""

    #: The family of distributions.
    family: Family
    #: Mean and standard deviation (of the natural logarithm for `lognormal`); mean (`exponential`); or shape
    #: and scale.
    parameters: list[float]
    #: Standard errors of the parameters.
    errors: list[float]
    #: Kolmogorov's and Smirnov's D, 0 to 1; None for rounded numbers.
    distance: float | None


class FitTable(TypedDict):
    """Fits of the five distributions."""

    #: Number of values that were used.
    count: int
    #: Number of values that can't be used.
    left_out: int
    #: Critical value of D at 5%: a sample of this size has a larger D in 5% of cases if its distribution is
    #: known beforehand. With fitted parameters D tends to be smaller, so a larger D refutes the fit all the
    #: more.
    critical: float
    #: The fits, the closest first; empty if there are too few values.
    fits: list[FitLine]


class FittedQuantity(TypedDict):
    """Distributions fitted to one quantity."""

    #: `group_gap` (from the beginning of a group of failures to that of the next), `failure_gap` (from a
    #: failure to the next), `up`, `down` (all seconds) or `group_size` (failures).
    quantity: str
    #: The site; None for the whole pool.
    site: str | None
    #: Statistics of the values.
    values: Spread | None
    #: Fits to the values that are above zero.
    raw: FitTable
    #: Fits to the logarithms to base 2 of the values that are above one.
    log2: FitTable
    #: Time at which the hazard of the Weibull fit to the logarithms is largest: it rises until this time and
    #: falls after it, however large the shape is. None for sizes.
    hazard_peak_seconds: float | None
    #: For sizes: the Weibull distribution of log2 x that makes the sizes, taken as rounded x, most likely.
    #: Unlike `log2` it uses the sizes of 1.
    rounded: FitLine | None


class ForgetReport(TypedDict):
    """Answer of `ckpt forget`."""

    #: Name of the job.
    job: str
    #: Whether this was a dry run, which removes nothing.
    dry_run: bool
    #: Versions that were removed; in a dry run, those that would be.
    removed: list[int]
    #: Remarks that do not change the exit status, such as a code that was chosen by forecast, a limit of the
    #: grid, or a host that was not informed of a removal.
    notes: list[str]
    #: Hosts that the removal did not reach: they may still hold shards. In a dry run, hosts that did not
    #: answer.
    silent: list[HostNote]
    #: Hosts of `silent` that hold shards, or that may hold shards that were not found: they show the removed
    #: versions until another host passes the removal on. The exit status is 3 when there are any.
    unheard: list[HostNote]


class GarbageItem(TypedDict):
    """A checkpoint that takes space for nothing."""

    #: Name of the job.
    job: str
    #: Version of the checkpoint within the job.
    version: int
    #: Id of the checkpoint.
    checkpoint: str
    #: Why it is garbage.
    why: str
    #: How many of its shards were found.
    shards: int
    #: Bytes that these shards take together.
    bytes: int


class GcReport(TypedDict):
    """Answer of `ckpt gc`."""

    #: Whether this was a dry run, which removes nothing.
    dry_run: bool
    #: Checkpoints that are (or were) kept without use.
    garbage: list[GarbageItem]
    #: Remarks that do not change the exit status: jobs of which nothing is removed, and why.
    notes: list[str]
    #: Hosts that did not answer, or that the change did not reach.
    silent: list[HostNote]
    #: Hosts of `silent` that hold shards of the garbage, or that may hold shards that were not found. The
    #: exit status is 3 when there are any.
    unheard: list[HostNote]


class GridHealth(TypedDict):
    """What hosts count of the checkpoints that they hold, summed over the grid. One of the hosts that hold
    shards of a checkpoint counts it. All these numbers are announced to this program; "proved" means that the
    holders proved shards to each other.
    """

    #: Hosts that counted.
    counted_by: int
    #: Hosts that did not count, and why.
    silent: list[Silence]
    #: Checkpoints that can lose 0, 1, 2, ... of the shards that their holders proved to each other.
    can_lose: list[int]
    #: Checkpoints of which fewer shards were proved than a restore needs.
    too_few: int
    #: Checkpoints of which fewer shards were proved than they were saved with.
    below: int
    #: Checkpoints of `below` of which hosts claim further shards without a recent proof.
    unchecked: int
    #: Checks by submitters that failed in the last seven days, at most 50 of each host.
    failed_checks: int
    #: Proofs that hosts asked of each other and that failed, since each host first counted them.
    failed_proofs: int
    #: Bytes that each submitter uses, the most first.
    owners: list[OwnerHealth]


class GridReport(TypedDict):
    """Answer of `ckpt grid up`, `ckpt grid status` and `ckpt grid add`."""

    #: The grid file.
    grid: str
    #: The hosts of the grid.
    hosts: list[LocalHost]


class GroupLine(TypedDict):
    """Groups of failures that follow one another closely."""

    #: Longest time from one failure of a group to the next.
    within: int
    #: Number of groups; a single failure counts as a group.
    groups: int
    #: Number of groups of at least two failures: correlated failures.
    correlated: int
    #: Share of all failures that are in groups of at least two.
    share: float
    #: Sizes of the groups of at least two, in failures.
    size: Spread | None
    #: Mean number of sites in a group of at least two.
    sites_mean: float | None
    #: Largest number of sites in a group of at least two.
    sites_max: int


class Health(TypedDict):
    """Answer of `ckpt health`. Fields that can come from several sources name the source: see `Known`."""

    #: Time of the report, Unix seconds by this machine's clock.
    at: int
    #: What needs attention, the worst first; empty when all is well.
    attention: list[Attention]
    #: The submitter's jobs, by name.
    jobs: list[JobHealth]
    #: Jobs of which no host that answers shows the newest version that this machine has seen.
    unfound: list[UnfoundJob]
    #: Keys and certificates that expire, the first to expire first.
    keys: list[KeyHealth]
    #: The hosts.
    hosts: HostsHealth
    #: How many of `hosts` are silent members: no registry hears them, and the list of the grid does not name
    #: them.
    absent: int
    #: The registries, in the order of the grid file.
    registries: list[RegistryHealth]
    #: What hosts count of all their checkpoints, for an admin; None for others.
    grid: GridHealth | None
    #: The work of jobs under `ckpt run` on this machine, by its own notes; None if there were none.
    work: WorkHealth | None


class HeldShard(TypedDict):
    """A shard, and a host that holds it."""

    #: Number of the shard.
    shard: int
    #: Name of the host.
    host: str


class Holder(TypedDict):
    """A shard and the host that holds it."""

    #: Number of the shard.
    shard: int
    #: Name of the host; None if no host has the shard.
    host: str | None


class HostHealth(TypedDict):
    """The state of one host. This machine has seen whether the host answers, its clock and its rate; the
    host's certificate is proved; all other fields are announced.
    """

    #: Its name.
    name: str
    #: Whether it can be used.
    state: HostState
    #: When it was seen last, Unix seconds, if no registry hears it and somebody has seen it.
    silent_since: int | None
    #: Why it is down or stands back.
    why: str | None
    #: Seconds for which it takes no new shards.
    refuses_for_s: int | None
    #: Bytes that the host lends; for a host that is down, the last value that a registry received (`health
    #: --admin`).
    capacity_bytes: int | None
    #: Bytes that are taken.
    used_bytes: int | None
    #: Bytes that can still be stored.
    free_bytes: int | None
    #: Seconds by which its clock is ahead of most hosts' clocks.
    clock_ahead_s: int | None
    #: Version of its program.
    software: str | None
    #: Version of the protocol that it speaks with this program.
    protocol: str | None
    #: When its certificate ends, Unix seconds.
    certificate_ends: int | None
    #: Rate of transfers that this machine has seen, bytes per second.
    bytes_per_second: float | None
    #: Probability that it stays for ten hours, by its own forecast.
    stays_10h: float | None


class HostNote(TypedDict):
    """One host's part in a failure or a replacement."""

    #: Name of the host.
    host: str
    #: What the host did, or what kept it from answering.
    what: str


class HostReport(TypedDict):
    """The state of one host."""

    #: Name of the host.
    name: str
    #: Its public key, 64 hexadecimal digits; the first 8 are enough to name it, and `ckpt grid revoke` takes
    #: them.
    id: str
    #: The name that registries report of it, if its certificate has another one; `name` is then that in the
    #: certificate.
    misnamed: str | None
    #: Its address; of a host that is listed by name: `NAME:PORT`, then in parentheses the address at which it
    #: answered.
    addr: str
    #: When its certificate ends, Unix seconds, if it answered.
    certificate_until: int | None
    #: Its site, if the grid file names one.
    site: str | None
    #: Whether the host answered.
    up: bool
    #: Whether it can be used.
    status: HostState
    #: When it was seen last, Unix seconds, if no registry hears it and somebody has seen it.
    silent_since: int | None
    #: Why it did not answer.
    error: str | None
    #: Whether registries hear it and get no answer at the address that it announces: a firewall or a router
    #: stops what comes from outside.
    unreached: bool
    #: Time of one request and its answer, milliseconds.
    rtt_ms: float | None
    #: Version of its software.
    software: str | None
    #: Version of the protocol that it speaks with this program: `ckpt/2`.
    protocol: str | None
    #: Bytes that it lends.
    capacity_bytes: int | None
    #: Bytes that are used.
    used_bytes: int | None
    #: Bytes that can still be stored.
    free_bytes: int | None
    #: How many whole shards it holds.
    shards: int | None
    #: How many committed checkpoints it knows.
    checkpoints: int | None
    #: Seconds since its daemon started.
    uptime_s: int | None
    #: State of the machine, as the host announces it: `idle`, `busy`, `cpu taken`, `no memory`, `gone`.
    machine: str | None
    #: State of the disk, as the host announces it: `full rate`, `limited`, `contended`, `no space`,
    #: `offline`.
    disk: str | None
    #: For how many more seconds it takes no new shards, as it announces; 0 if it takes them.
    refuses_for_s: int | None
    #: Why it takes no new shards, as it announces.
    why: str | None
    #: Share of the last 28 days in which the host was reachable, as far as the host knows.
    availability: float | None
    #: Probability that the host stays reachable for ten hours, by its own forecast.
    stays_10h: float | None


class HostsHealth(TypedDict):
    """The hosts, summed up and one by one."""

    #: How many are known, from the grid file and from registries, silent members included.
    known: int
    #: How many answer.
    up: Known
    #: How many of these take shards now.
    take_shards: Known
    #: Bytes that the answering hosts lend.
    capacity_bytes: Known
    #: Bytes of `capacity_bytes` that are taken.
    used_bytes: Known
    #: Bytes that the hosts that take shards can still store.
    free_bytes: Known
    #: Seconds by which this machine's clock is ahead of most hosts' clocks; None when no host reported its
    #: clock.
    clock_ahead_s: Known | None
    #: Share of the answering hosts that stay for 0, 1, ... 10 hours, the mean of their own forecasts; empty
    #: without any forecast.
    stay: list[float]
    #: The hosts one by one, in the order of the grid file.
    each: list[HostHealth]


class HostsReport(TypedDict):
    """Answer of `ckpt hosts`."""

    #: All known hosts: those of the list of the grid, and those that registries know.
    hosts: list[HostReport]
    #: Totals over these hosts.
    summary: HostsSummary


class HostsSummary(TypedDict):
    """Totals over all hosts."""

    #: How many hosts are known.
    known: int
    #: How many hosts answer.
    up: int
    #: How many of the answering hosts take shards now and have room.
    take_shards: int
    #: Bytes that these hosts can still store.
    free_bytes: int


class InitReport(TypedDict):
    """Answer of `ckpt grid init`."""

    #: Name of the grid.
    grid: str
    #: Directory of the authority.
    dir: str
    #: The grid file.
    grid_file: str
    #: When the certificate of the authority ends, Unix seconds.
    expires: int
    #: Data directory of the registry, if one was made.
    registry: str | None


class InviteReport(TypedDict):
    """Answer of `ckpt grid invite`."""

    #: When the tokens expire, Unix seconds.
    expires: int
    #: The tokens, each for one member.
    tokens: list[str]
    #: The name of the member that the new one replaces.
    replaces: str | None
    #: Which members have the list with the key of the member that is replaced.
    sent: Sent | None


class JobHealth(TypedDict):
    """The newest version of a job."""

    #: The job.
    job: str
    #: Its newest version.
    version: int
    #: How many versions there are.
    versions: int
    #: When its save began, Unix seconds.
    created: Known
    #: Seconds since then; None if that is in the future by most hosts' clocks.
    age_s: int | None
    #: Usual time between two saves, seconds: the median of the last five; None with a single version.
    interval_s: int | None
    #: Its redundancy.
    redundancy: str
    #: Different shards that hosts hold.
    shards: Known
    #: Which host holds which shard of the newest version.
    holders: list[HeldShard]
    #: Number of these shards that can still be lost; None when the checkpoint can't be restored now.
    can_lose: Known
    #: Until when the job's checkpoints are kept, Unix seconds; None for ever.
    kept_until: Known | None
    #: Whether a retired key saved it, an earlier key of the submitter.
    retired: bool


class JobKeyReport(TypedDict):
    """Answer of `ckpt key for-job`."""

    #: The job, or the prefix followed by a slash.
    job: str
    #: What the key may be used for.
    rights: str
    #: The number by which the key can be made void.
    serial: int
    #: When the key ends, Unix seconds.
    until: int
    #: The file with the key.
    file: str


class JobsReport(TypedDict):
    """Answer of `ckpt jobs`."""

    #: Time of the report, Unix seconds.
    at: int
    #: The jobs, by name.
    jobs: list[RunningJob]
    #: Seconds of work that no version holds, over all jobs.
    at_risk_seconds: float
    #: Jobs that run on another machine that shares this state directory. They are not in `jobs`.
    elsewhere: int
    #: Directories of jobs that can't be read.
    unreadable: list[UnreadableJob]


class JoinReport(TypedDict):
    """Answer of `ckpt join`."""

    #: Name of the new member.
    name: str
    #: Name of the grid.
    grid: str
    #: The public key, hexadecimal.
    id: str
    #: The secret key's file.
    key: str
    #: The certificate's file.
    certificate: str
    #: The grid file.
    grid_file: str
    #: When the certificate ends, Unix seconds.
    expires: int


class JudgedReport(TypedDict):
    """Forecasts of presence on the past of the hosts that answered; all models made the same number of them."""

    #: How far ahead, hours.
    hours: int
    #: Number of forecasts.
    forecasts: int
    #: Mean squared error (Brier score) of the mean of the hazard regression and the model of the pool; None
    #: without forecasts.
    blend_brier: float | None
    #: Mean squared error of the hazard regression with the level of the host.
    hazard_brier: float | None
    #: Mean squared error of the papers' semi-Markov process.
    smp_brier: float | None


class KeyHealth(TypedDict):
    """A key or certificate that ends."""

    #: The key or certificate: `certificate of ada`, `job key`, `certificate of the authority of grid lab`.
    what: str
    #: When it ends, Unix seconds.
    ends: Known
    #: Seconds until then; 0 when it has ended.
    left_s: int


class KeyReport(TypedDict):
    """Answer of `ckpt init` and `ckpt key rotate`."""

    #: The public key, hexadecimal.
    id: str
    #: The secret key's file.
    key: str
    #: The public part for the admin, if it was written.
    public: str | None
    #: The path of the certificate.
    certificate: str
    #: Whether the key existed before.
    existed: bool
    #: What to do next.
    next: str | None


class Known(TypedDict):
    """A number, and how it came to be known."""

    #: The number.
    value: float | None
    #: How it came to be known.
    basis: Basis


class LedgerReport(TypedDict):
    """What became of work when jobs lost their machines: the lines of `ledger.jsonl` in the state directory,
    of one job with `--job`. A job on a host of `--on` counts on the machine from which it was started.
    """

    #: The jobs that lost a machine, by name.
    jobs: list[JobLedger]
    #: The sum of these jobs.
    all: LedgerSum
    #: How many lines of the ledger can't be read.
    unreadable: int


class LedgerSum(TypedDict):
    """Sums over the times when jobs lost their machines."""

    #: How often a job had to leave its machine, or the machine or `ckpt run` was lost.
    evictions: int
    #: How often of these the job could go on from a saved state.
    survived: int
    #: Seconds of work that did not have to be repeated; at evictions, and where another incarnation went on
    #: or the job hung.
    rescued_seconds: float
    #: Seconds of work that had to be repeated.
    lost_seconds: float


class ListReport(TypedDict):
    """Answer of `ckpt list`."""

    #: Checkpoints, by job and then by version.
    checkpoints: list[ListedCheckpoint]
    #: Hosts that did not answer; checkpoints that only they hold are missing here.
    silent: list[HostNote]
    #: Whether they may hold a job's versions of which no other host shows any.
    may_be_away: bool
    #: How many checkpoints are missing here because there is no memory for them. All were saved with job
    #: keys.
    left_out: int


class ListedCheckpoint(TypedDict):
    """One checkpoint in a list."""

    #: Name of the job.
    job: str
    #: Version of the checkpoint within the job.
    version: int
    #: Id of the checkpoint.
    checkpoint: str
    #: When the save began, Unix seconds.
    created: int
    #: How many shards carry data and parity.
    redundancy: str
    #: Sum of the file sizes.
    image_bytes: int
    #: Bytes of the image after compression, before coding.
    stored_bytes: int
    #: The version that uses rows of this checkpoint, if `--keep` keeps it only for that; None for a version.
    kept_for: int | None
    #: Different shards that answering hosts hold.
    shards_found: int
    #: How many of these can still be lost; None if it can't be restored now.
    can_lose: int | None
    #: Why its image is not known to be one whole state; None if it is. A restore takes such a version only if
    #: there is no older whole one, or with `--accept-marked`.
    marked: str | None
    #: Whether it was saved with a job key that is void now. Only `--version` restores such a checkpoint.
    void: bool
    #: Whether it was saved with a key that has been replaced since. Versions are numbered separately for each
    #: key.
    retired: bool
    #: Until when the job's checkpoints are kept, Unix seconds; None for ever.
    kept_until: int | None
    #: The note of `save --note`.
    note: str | None
    #: The labels of `save --label`, by key.
    labels: dict[str, str]


class LocalHost(TypedDict):
    """One host of a local grid."""

    #: Name of the host.
    name: str
    #: Its address.
    addr: str
    #: The id of its process; None when it is down.
    pid: int | None
    #: Its data directory.
    data: str


class MapHost(TypedDict):
    """A host in a map."""

    #: Its name.
    name: str
    #: Its site, if the grid file names one.
    site: str | None
    #: Whether it is assumed to go away.
    goes: bool


class MapIf(TypedDict):
    """What a restore takes."""

    #: The version.
    version: int
    #: How many more shards it can lose.
    can_lose: int
    #: How much older it is than the newest version, seconds: work that would be lost.
    older_s: int


class MapJob(TypedDict):
    """The newest version of a job, and from what the job could go on."""

    #: Name of the job.
    job: str
    #: Its newest version.
    version: int
    #: When the save of that began, Unix seconds.
    created: int
    #: How many shards carry data and parity, such as `3+2`.
    redundancy: str
    #: Which host holds which shard of it.
    holders: list[Holder]
    #: What a restore takes now; None if it takes nothing.
    now: MapIf | None
    #: What a restore would take if the hosts that are assumed to go away were; None if it would take nothing,
    #: or if nothing is assumed.
    then: MapIf | None


class MapReport(TypedDict):
    """Answer of `ckpt map`."""

    #: The jobs, by name.
    jobs: list[MapJob]
    #: The hosts of the grid.
    hosts: list[MapHost]
    #: Whether hosts are assumed to go away; with `--tonight` that may be none.
    is_supposed: bool
    #: Hosts that did not answer; shards that only they hold are missing here.
    silent: list[HostNote]


class Member(TypedDict):
    """A member of the grid."""

    #: Its name.
    name: str
    #: Its roles, such as `donor` and `submitter`.
    roles: list[str]
    #: Its public key, hexadecimal.
    key: str
    #: When the certificate ends, Unix seconds. Unknown for members of which a registry reports only that they
    #: are there.
    expires: int | None
    #: When its key was revoked, Unix seconds, if the record of the authority names that.
    revoked: int | None
    #: Its address, if it is known.
    addr: str | None
    #: `valid`, `joined` (with a token), `ends soon`, `expired` or `revoked`.
    state: str
    #: When the member joined with a token, or when its certificate was signed, Unix seconds.
    joined: int | None
    #: The first digits of the number of the token with which it joined.
    token: str | None
    #: The registry that redeemed the token, if it answered.
    registry: str | None
    #: When that registry heard the member last, Unix seconds.
    seen: int | None


class ModelsReport(TypedDict):
    """Answer of `ckpt hosts --model`: which models make the forecasts of hosts."""

    #: Number of hosts that answered.
    hosts_asked: int
    #: Number of these whose forecasts are the mean of the hazard regression and the model of the pool.
    hosts_of_blend: int
    #: Number of these whose forecasts are of the hazard regression alone.
    hosts_of_hazard: int
    #: Number of these whose forecasts are of the papers' semi-Markov process.
    hosts_of_smp: int
    #: Number of these that name no model: daemons of earlier versions.
    hosts_unnamed: int
    #: How good these models would have been in the last seven days of these hosts, by horizon.
    judged: list[JudgedReport]


class OwnerHealth(TypedDict):
    """What one submitter uses over the grid."""

    #: First digits of the public key.
    key: str
    #: Name, as in the certificate, where a host has seen it.
    name: str | None
    #: Bytes that are taken on all hosts together.
    used_bytes: int
    #: Number of hosts on which the submitter uses bytes.
    hosts: int


class PastRunReport(TypedDict):
    """A run that ended with exit status 0."""

    #: When it ended, Unix seconds.
    ended_at: int
    #: Name of the job.
    job: str
    #: The program and its words, with the numbers.
    command: str
    #: Processor time at reference speed, seconds.
    cpu_seconds: float
    #: Time in which it could run, converted to seconds of a machine of reference speed.
    work_seconds: float
    #: Seconds from its first start to its end.
    elapsed_seconds: float
    #: How often it was started.
    starts: int
    #: Speed of the machine on which it ended, 1 for the reference.
    speed: float
    #: Processor time that was forecast, seconds; None if nothing was known.
    forecast_seconds: float | None
    #: Lower end of the interval of the forecast, seconds.
    low_seconds: float | None
    #: Upper end of the interval of the forecast, seconds.
    high_seconds: float | None
    #: Error of the forecast, as a share of the truth: 0.1 if it was 10% too high or too low.
    error: float | None
    #: The same error of the run with the nearest numbers.
    nearest_error: float | None


class PatternLine(TypedDict):
    """Failures and recoveries at an hour of the day, or on a day of the week."""

    #: How often hosts became unavailable.
    failures: int
    #: How often hosts became available.
    recoveries: int
    #: Failures per hour of a host that is up, divided by the mean of this over all hours; None if no host is
    #: up, or none ever fails.
    rate: float | None


class PlacedHost(TypedDict):
    """One host in the table behind a choice."""

    #: Name of the host.
    name: str
    #: Its site, if the grid file names one.
    site: str | None
    #: Whether it was chosen.
    chosen: bool
    #: Why it is only a reserve; None if it is none.
    reserve: ReserveReason | None
    #: State of the machine, as the host announces it: `idle`, `busy`, `cpu taken`, `no memory`, `gone`.
    machine: str | None
    #: State of the disk, as the host announces it: `full rate`, `limited`, `contended`, `no space`,
    #: `offline`.
    disk: str | None
    #: Expected rate of transfers, bytes per second.
    bytes_per_second: float
    #: Whether the rate was measured from this machine; otherwise it is assumed.
    measured: bool
    #: Probability that the host stays reachable until the next checkpoint, by its own forecast.
    stays: float | None
    #: Probability that the host can be read when the job needs it, from its forecast and from experience.
    readable: float
    #: Largest correlation of its availability with that of any chosen host.
    correlation: float
    #: The objective of the best choice that contains this host, seconds.
    objective_with: float | None
    #: The objective of the best choice without this host, seconds.
    objective_without: float | None


class PlacementReport(TypedDict):
    """Why hosts were chosen: the answer of `ckpt hosts --for-job`, and a part of that of `ckpt save
    --explain`.
    """

    #: Name of the job.
    job: str
    #: Data shards and parity shards, such as `3+2`.
    redundancy: str
    #: Probability that enough of the chosen hosts can be read when the job needs it.
    reliability: float
    #: Expected time to store, seconds.
    store_seconds: float
    #: Expected time to restore, seconds.
    restore_seconds: float
    #: Probability that the job's machine fails before the next checkpoint.
    compute_fails: float
    #: The objective that the choice minimises, seconds: expected cost minus expected benefit.
    objective_seconds: float
    #: The hosts: first the chosen ones, then the others in the order in which they would be tried.
    hosts: list[PlacedHost]
    #: Remarks that do not change the exit status, such as a code that was chosen by forecast, a limit of the
    #: grid, or a host that was not informed of a removal.
    notes: list[str]
    #: Hosts that did not answer.
    silent: list[HostNote]


#: Answer of `ckpt trace describe`: a pool of machines over the time in which it was observed. Lengths are in
#: seconds.
PoolDescription = TypedDict(
    "PoolDescription",
    {
        #: Name of the trace.
        "name": "str",
        #: What was observed.
        "about": "str",
        #: First moment of which anything is known, Unix seconds.
        "from": "int",
        #: The moment after the last one, Unix seconds.
        "to": "int",
        #: Hosts of which anything is known.
        "hosts": "int",
        #: Sites of these hosts; hosts without a site are not counted.
        "sites": "int",
        #: Resolution of the times, seconds.
        "resolution_seconds": "int",
        #: What counts as unavailable: `guest` (S3, S4, S5) or `gone` (S5).
        "counts": "str",
        #: Share of the time, from the pool's first moment to its last, in which a host's state is not known:
        #: mean over the hosts.
        "unknown": "float",
        #: Number of failures: times at which a host that was up became unavailable.
        "failures": "int",
        #: Availability, failures and time between failures of the pool, of its sites, and of its hosts.
        "levels": "list[PoolLevel]",
        #: Share of the hosts that are up in each step of `up_share_step` seconds.
        "up_share": "Spread | None",
        #: Length of these steps: hours, days or, for a very long trace, several days.
        "up_share_step": "int",
        #: Lengths of the times up that were observed from beginning to end.
        "up": "Spread | None",
        #: Number of times up whose beginning or end was not observed; they tend to be the longer ones.
        "up_cut": "int",
        #: Lengths of the times down that were observed from beginning to end.
        "down": "Spread | None",
        #: Number of times down whose beginning or end was not observed.
        "down_cut": "int",
        #: Failures by their cause.
        "causes": "list[CauseLine]",
        #: Offset from UTC, in hours, of the hours and days of the patterns.
        "utc_offset": "int",
        #: Failures and recoveries by hour of the day, from midnight.
        "by_hour": "list[PatternLine]",
        #: Failures and recoveries by day of the week, from Monday.
        "by_weekday": "list[PatternLine]",
        #: Groups of failures, for several times allowed between two failures of a group.
        "groups": "list[GroupLine]",
        #: The time allowed between two failures of a group in `fits`.
        "group_within": "int",
        #: Failures of each site, the site with most failures first.
        "site_failures": "list[SiteShare]",
        #: Fitted distributions: of the pool first, then of each site.
        "fits": "list[FittedQuantity]",
    },
)


class PoolHour(TypedDict):
    """What was seen of the pool in one hour of the week, over the last four weeks."""

    #: Hosts of which anything is known for this hour.
    known: int
    #: Hosts that were there, in the mean of the weeks: they take shards.
    hosts: float
    #: Hosts whose processors were free for jobs, in the mean of the weeks.
    free: float
    #: Starts that were seen: hosts whose processors were free when such an hour began.
    starts: int
    #: Of these, how many stayed free for as long as the job takes.
    stayed: int


class PoolLevel(TypedDict):
    """Availability and failures of a pool, or of its sites or hosts."""

    #: `pool`, `site` or `host`.
    level: str
    #: Share of the known time for which hosts are up: a number for each site or host.
    availability: Spread | None
    #: Number of failures: one for each site or host.
    failures: Spread | None
    #: Mean time between failures (MTBF): a number for each site or host with at least two failures. For the
    #: pool: each time between two of its failures.
    between_failures: Spread | None


class PoolReport(TypedDict):
    """Answer of `ckpt plan pool`."""

    #: Hosts that answered, or whose past a registry passed on.
    hosts: int
    #: Time that the job takes, seconds.
    job_s: int
    #: The hours of the week in UTC, from Monday 0:00; 168 of them.
    hours: list[PoolHour]
    #: The present hour, as its number in `hours`.
    now: int
    #: When to start a job within a day; None if too few starts were seen at any of these hours.
    best: BestStart | None


class Progress(TypedDict):
    """How far a long command is; reported a few times each second."""

    #: Image bytes that are done, such as read by a save or written by a restore.
    done_bytes: int
    #: Bytes of the whole image; None until they are known.
    total_bytes: int | None
    #: How many bytes the done bytes have after compression.
    stored_bytes: int
    #: Bytes that went over the network so far.
    network_bytes: int


class QueuedReport(TypedDict):
    """Answer of `ckpt list --queued`."""

    #: The images that were set aside and are not saved yet.
    saves: list[QueuedSave]
    #: Bytes of their files.
    bytes: int


class QueuedSave(TypedDict):
    """An image that was set aside and is not saved yet."""

    #: Name of the job.
    job: str
    #: `queued`, `saving` or `failed`: one that failed is tried again.
    state: str
    #: When it was set aside, Unix seconds.
    set_aside_at: int
    #: How it was set aside.
    how: How
    #: Bytes of its files.
    bytes: int
    #: Why the last try failed.
    error: str | None


class RankReport(TypedDict):
    """Answer of `ckpt plan where`."""

    #: The job's work: seconds on processors of speed 1 that it has for itself.
    work_seconds: float
    #: Number of processors that the job uses.
    cores: int
    #: Memory that the job needs, bytes.
    memory_bytes: int
    #: The rule of the order: `falcon` or `expected`.
    rule: str
    #: Whether the job is saved, so that a failure costs only the work since the last checkpoint.
    checkpoints: bool
    #: The machines that can run the job, the best first.
    hosts: list[RankedHost]
    #: Machines that are too small, or take no guest now.
    unfit: list[HostNote]
    #: Hosts that did not answer.
    silent: list[HostNote]


class RankedHost(TypedDict):
    """A machine on which the job could run. Its properties are what its host claims."""

    #: Name of the host.
    host: str
    #: Whether the host claims nothing, so that the machine counts as average.
    assumed: bool
    #: Number of its processors.
    cores: int | None
    #: Speed of one processor, 1 for the reference.
    speed: float
    #: Whether the speed comes from the user's own runs, which outrank the claim.
    speed_seen: bool
    #: Memory that a guest could have now, bytes.
    memory_bytes: int | None
    #: The owner's mean load on the processors that the job takes, over the time of the job, 0 to 1.
    load: float
    #: Work done per second of time.
    rate: float
    #: Probability that the job ends before it is driven off (TR), 0 to 1.
    reliability: float
    #: Mean time to failure (MTTF), seconds; None if no failure is in sight.
    stays_seconds: float | None
    #: Time of the job without failures (JCT), seconds; None if it never ends.
    done_seconds: float | None
    #: Work done until the failure (ETL), seconds at speed 1; None if no failure is in sight.
    work_until_failure: float | None
    #: Time of the job by FALCON's formula (JCTF), seconds; None if it is not expected to end there.
    done_with_failures: float | None
    #: Expected time to the job's end, on this machine or another, seconds; None if it never ends.
    expected_seconds: float | None


class RegistryHealth(TypedDict):
    """The state of one registry."""

    #: Its name; `etcd` for etcd.
    name: str
    #: Number of hosts from which the registry received a message lately; None when the registry does not
    #: answer.
    hosts_heard: Known | None
    #: Why it does not answer.
    why: str | None


class RemoveReport(TypedDict):
    """Answer of `ckpt grid remove`."""

    #: The key that was removed, hexadecimal.
    key: str
    #: Number of the list of the grid.
    number: int
    #: Which members have the changed list; None if nothing was sent.
    sent: Sent | None


class RenewReport(TypedDict):
    """Answer of `ckpt grid renew`."""

    #: The certificates that were renewed.
    renewed: list[Renewed]
    #: Which members have the changed list; None if nothing was sent.
    sent: Sent | None


class Renewed(TypedDict):
    """A certificate that was renewed."""

    #: Name of the member.
    name: str
    #: Its roles, such as `donor` and `submitter`.
    roles: list[str]
    #: Its public key, hexadecimal.
    key: str
    #: When the certificate before it ends, Unix seconds.
    ended: int
    #: When the new one ends, Unix seconds.
    expires: int
    #: The new one's file.
    certificate: str


class RestoreReport(TypedDict):
    """Answer of `ckpt restore`."""

    #: Name of the job.
    job: str
    #: The version that was restored; None if there was none and `--if-exists` was given.
    version: int | None
    #: Whether this was a dry run, which restores nothing and shows what a restore would do.
    dry_run: bool
    #: The path that was written; `-` is standard output.
    target: str
    #: Sum of the file sizes.
    image_bytes: int
    #: Bytes that came from hosts; in a dry run, those that would be fetched.
    fetched_bytes: int
    #: Bytes of the image that files of this machine had already, and that were not fetched.
    at_hand_bytes: int
    #: Number of files in the image.
    files: int
    #: Seconds from start to end; in a dry run, the expected time to fetch the bytes.
    seconds: float
    #: Bytes that each host sent; in a dry run, those that it would be asked for.
    sources: list[SourceBytes]
    #: Newer versions that could not be restored, and why. The exit status is 3 when there are any.
    skipped: list[SkippedVersion]
    #: Why the restored image is not known to be one whole state; the exit status is 3 then. None if it is
    #: whole.
    marked: str | None
    #: What the user should know.
    warnings: list[str]


class RevokeReport(TypedDict):
    """Answer of `ckpt grid revoke`."""

    #: The revoked key, hexadecimal.
    key: str
    #: Whether the key was revoked before.
    was_already: bool
    #: Number of the list of revoked keys.
    number: int
    #: The grid file.
    grid_file: str
    #: Which members have the changed list; None if nothing was sent.
    sent: Sent | None


class RevokedJobKeysReport(TypedDict):
    """Answer of `ckpt key revoke`."""

    #: Keys with lower serial numbers are void.
    serials_below: int
    #: Hosts that know of it, and pass it on.
    heard: list[str]
    #: Hosts that could not be reached.
    silent: list[HostNote]


class RollReport(TypedDict):
    """Answer of `ckpt grid show`."""

    #: Name of the grid.
    grid: str
    #: When the certificate of the authority ends, Unix seconds.
    authority_expires: int
    #: Number of the list of the grid.
    list: int
    #: Number of the list of revoked keys.
    revoked_list: int
    #: The members.
    members: list[Member]
    #: Registries that did not answer who joined: the name of each, and why.
    silent: list[list[str]]


class RunCheckReport(TypedDict):
    """Answer of `ckpt run --check`."""

    #: Name of the job.
    job: str
    #: The version that would be restored; None if the job would begin anew.
    version: int | None
    #: Who deals with the machine's owner: this program, or a batch system, as a phrase.
    owner: str
    #: What would hold the job back on this machine: first the chosen way, then all that were tried.
    control: list[ControlFound]
    #: Seconds between checkpoints, if each takes `cost_seconds`; None if no checkpoint is worth its cost.
    interval_seconds: float | None
    #: Seconds for which the job is expected to stand still for a checkpoint.
    cost_seconds: float
    #: Where the forecast for the machine comes from.
    outlook: str
    #: Seconds between the need to leave and the end.
    grace_seconds: float
    #: What the key may be used for: all jobs of its owner, or what the grant of a job key allows.
    key: str
    #: The path that the journal has or would have.
    journal: str
    #: What stands in the way, or could work better.
    notes: list[str]


class RunForecastReport(TypedDict):
    """Answer of `ckpt runs --predict`."""

    #: Path of the history.
    history: str
    #: The program and its words, with the numbers.
    command: str
    #: Forecast of the processor time at reference speed, seconds.
    cpu_seconds: float
    #: Lower end of the interval, seconds; None if the forecast rests on a single run.
    low_seconds: float | None
    #: Upper end of the interval, seconds.
    high_seconds: float | None
    #: Share of runs that lie in the interval, 0 to 1: 0.9, or less with fewer than 19 runs.
    share: float | None
    #: Processor time of the run with the nearest numbers, seconds: the rule of AVAM.
    nearest_seconds: float
    #: How many earlier runs were compared with this one.
    runs: int
    #: Names of the numbers that lie outside the range of all earlier runs.
    outside: list[str]
    #: Speed of this machine, 1 for the reference.
    speed: float
    #: Seconds that it has to run on this machine, if it gets the same share of it as earlier runs did of
    #: theirs.
    here_seconds: float
    #: The longest time without a sign of life of any earlier run, seconds.
    quiet_seconds: float


class RunReport(TypedDict):
    """Answer of `ckpt run`, on standard error."""

    #: Name of the job.
    job: str
    #: Exit status of `ckpt run`.
    exit_code: int
    #: Whose decision the end was: `job` or `supervisor`.
    ended_by: str
    #: Why it ended, such as `exit status 0`, `SIGTERM` or `the owner needs the processors`.
    why: str
    #: The version from which the job began on this machine; None if it began anew.
    began_from: int | None
    #: The newest version that was committed or restored.
    version: int | None
    #: Seconds in which the job was allowed to run.
    work_seconds: float
    #: Seconds in which it was stopped for the machine's owner.
    suspended_seconds: float
    #: Seconds in which it was stopped for checkpoints.
    checkpoint_seconds: float
    #: Seconds of work that the next start of the job has to repeat, because no committed checkpoint holds
    #: them.
    lost_seconds: float
    #: If work was lost: what kept the job's files from being whole, and what helps, as far as it is known.
    obstacle: str | None
    #: How often the job was stopped for the owner.
    suspensions: int
    #: How many checkpoints were committed.
    checkpoints: int
    #: How many saves failed.
    failed_saves: int
    #: The final checkpoint; None if the job did not have to leave.
    last: FinalReport | None
    #: Processor time of the job in all its incarnations, at reference speed, seconds.
    cpu_seconds: float
    #: Speed of a processor of this machine, 1 being the reference; 1, too, with `--history none`.
    speed: float
    #: How often the job was started, this time included.
    starts: int
    #: Processor time that was forecast at the first start, seconds; None if nothing was known.
    forecast_cpu_seconds: float | None
    #: Whether the job is within `--finish-within`; None without this option.
    in_time: bool | None
    #: The path of the journal.
    journal: str
    #: What the user should know, in whole sentences.
    warnings: list[str]


class RunningJob(TypedDict):
    """A job that `ckpt run` runs now: its supervisor holds the lock of its directory."""

    #: Name of the job.
    job: str
    #: What is done with it.
    state: JobState
    #: Since when it is stopped or leaves, Unix seconds.
    since: int | None
    #: Why it is stopped or leaves.
    why: str | None
    #: The host on which it runs for `ckpt run --on`; None on this machine.
    host: str | None
    #: The host that has fetched the newest version ahead (`ckpt run --on --standby`); None if none has.
    standby: str | None
    #: The newest version that was committed or restored; None if there is none.
    version: int | None
    #: When that version was committed, Unix seconds; None if the job was restored from it.
    saved_at: int | None
    #: Seconds until the next save is due, 0 if one is overdue; None if none is foreseen.
    next_save_seconds: float | None
    #: Seconds of work that would be lost if the machine failed now.
    at_risk_seconds: float
    #: Seconds that are lost at most if the machine is taken with notice; None while that is not known.
    promised_seconds: float | None
    #: Why the last save did not happen; None if it did.
    not_saved: str | None
    #: When its supervisor last reported this, Unix seconds.
    reported_at: int


class RunsReport(TypedDict):
    """Answer of `ckpt runs`."""

    #: Path of the history.
    history: str
    #: Runs, in the order in which they ended.
    runs: list[PastRunReport]
    #: How many lines of the file are not runs.
    unreadable: int
    #: How many of these runs had a forecast.
    forecast_runs: int
    #: Mean error of these forecasts; None if there are none.
    mean_error: float | None
    #: Mean error of the rule of AVAM, which takes the run with the nearest numbers; None without forecasts.
    nearest_mean_error: float | None
    #: Share of these runs whose time was in the interval of the forecast, 0 to 1; None without any.
    inside: float | None
    #: What became of work when jobs lost their machines.
    ledger: LedgerReport


class SaveReport(TypedDict):
    """Answer of `ckpt save`."""

    #: Name of the job.
    job: str
    #: The version that was committed.
    version: int
    #: Id of the new checkpoint.
    checkpoint: str
    #: Its redundancy, such as `3+2`.
    redundancy: str
    #: Shards of this version, or of what it builds on, that can be lost without losing the image.
    can_lose: int
    #: Sum of the file sizes.
    image_bytes: int
    #: Bytes that were read; holes are not read.
    read_bytes: int
    #: Bytes of `read_bytes` in segments that are all zero.
    zero_bytes: int
    #: The earlier version that this one was compared with; only the changes since then were stored. None if
    #: it was stored whole, or has nothing in common with an earlier one.
    base: int | None
    #: Bytes that were stored, after compression and before coding.
    stored_bytes: int
    #: How many of the `stored_bytes` were stored because they had changed since `base`. The others were
    #: stored again, so that an older checkpoint is needed no more. None when the image is stored whole.
    new_bytes: int | None
    #: Bytes of the image that an interrupted save had sent, and that were not sent again. None if there were
    #: none.
    resumed_bytes: int | None
    #: Bytes of all shards together.
    shard_bytes: int
    #: How the segments of the image were compressed, by method.
    compressed: list[Compressed]
    #: How many times hosts store each of the `stored_bytes`: 1.67 with 3+2 shards, 3 with 1+2.
    stored_times: float
    #: Number of files in the image.
    files: int
    #: Seconds from start to commit.
    seconds: float
    #: Seconds from start until the image was read; the files may change from then on.
    held_seconds: float
    #: Which host holds which shard.
    holders: list[Holder]
    #: Hosts that were replaced during the save, and why; hosts that hold a shard in the end are left out.
    replaced: list[HostNote]
    #: Versions that `--keep` removed.
    removed: list[int]
    #: Why the image is not known to be one whole state, with `--accept-changed`; None if it is.
    marked: str | None
    #: Until when the job's checkpoints are kept, Unix seconds; None for ever.
    kept_until: int | None
    #: With `--after`: which version this one follows, and who agreed.
    fence: FenceReport | None
    #: Remarks that do not change the exit status, such as a code that was chosen by forecast, a limit of the
    #: grid, or a host that was not informed of a removal.
    notes: list[str]
    #: The table behind the choice of hosts, with `--explain`.
    placement: PlacementReport | None
    #: What the user should know, in whole sentences.
    warnings: list[str]


class Sent(TypedDict):
    """Which members have received a new list."""

    #: Number of the list.
    number: int
    #: How many members of this list were asked. The others get it from them.
    asked: int
    #: How many of these answered.
    answered: int
    #: How many of these have the list.
    have: int
    #: Members that have it, also those that it removes or revokes.
    heard: list[str]
    #: Members of this list that were asked and do not have it. Others will pass it on to them.
    silent: list[HostNote]


class SetupReport(TypedDict):
    """Answer of `ckpt run --setup`."""

    #: The script or submit file that was written.
    file: str
    #: Name of the job.
    job: str
    #: For what the file is: `shell`, `slurm` or `htcondor`.
    under: str
    #: What the trial showed; None if the job was not tried.
    trial: Trial | None
    #: Why the job was not tried.
    untried: str | None
    #: The command that starts the job.
    next: str


class ShownFile(TypedDict):
    """One file of an image."""

    #: Path; bytes that are no UTF-8 are shown as `\xNN`, and a backslash as `\\`.
    path: str
    #: `directory`, `file`, `symlink`, `hardlink` or `fifo`.
    kind: str
    #: Length in bytes, holes included.
    size: int
    #: Bytes that are not holes.
    data_bytes: int
    #: Permission bits, such as 420 for `rw-r--r--`.
    mode: int
    #: Last change, Unix seconds.
    mtime: int
    #: Target of a link.
    target: str | None


class SignReport(TypedDict):
    """Answer of `ckpt grid sign`."""

    #: Name of the member.
    name: str
    #: Its public key, hexadecimal.
    key: str
    #: Its roles, such as `donor` and `submitter`.
    roles: list[str]
    #: When the certificate ends, Unix seconds.
    expires: int
    #: The certificate's file.
    certificate: str
    #: The grid file.
    grid_file: str
    #: Whether the list of the grid names its address.
    listed: bool
    #: Which members have the changed list; None if nothing was sent.
    sent: Sent | None


class Silence(TypedDict):
    """A host that did not count."""

    #: Its name.
    host: str
    #: Why it did not count.
    why: str


class SiteShare(TypedDict):
    """Failures of a site."""

    #: Name of the site.
    site: str
    #: Number of its hosts.
    hosts: int
    #: Number of its failures.
    failures: int
    #: Share of all failures (f_s).
    share: float


class SkippedVersion(TypedDict):
    """A version that was passed over."""

    #: The version that was not taken.
    version: int
    #: Why it was passed over.
    reason: str
    #: Whether it is passed over because it is marked, so that `--accept-marked` restores it.
    marked: bool


class SourceBytes(TypedDict):
    """What one host contributed to a restore."""

    #: Name of the host.
    host: str
    #: Bytes of blocks from it that were good.
    bytes: int


class Spread(TypedDict):
    """Statistics of a sample of numbers, in the unit of the numbers."""

    #: Size of the sample.
    count: int
    #: Mean.
    mean: float
    #: Standard deviation of the population.
    sd: float
    #: The least number.
    min: float
    #: First quartile.
    quarter: float
    #: Median.
    median: float
    #: Third quartile.
    three_quarters: float
    #: The largest number.
    max: float


class SuccessorNote(TypedDict):
    """The checkpoint that follows the one that `save --after` names."""

    #: Version of that checkpoint.
    version: int
    #: Id of that checkpoint.
    checkpoint: str
    #: Whether it is committed. If not, its save was left half done.
    committed: bool


class TouchReport(TypedDict):
    """Answer of `ckpt touch`."""

    #: Name of the job.
    job: str
    #: Until when its checkpoints are kept, Unix seconds; None for ever.
    kept_until: int | None
    #: Hosts that the change did not reach: other hosts pass it on to them.
    silent: list[HostNote]
    #: Hosts of `silent` that hold shards of the job, or that may hold shards that were not found: they know
    #: only the earlier lease. The exit status is 3 when there are any.
    unheard: list[HostNote]


class TravelReport(TypedDict):
    """Answer of `ckpt key export` and `ckpt key import`."""

    #: The public key, hexadecimal.
    id: str
    #: The file that was written or read.
    file: str
    #: What is in it, or what was put in place.
    parts: list[str]
    #: What to do next.
    next: str | None


class Trial(TypedDict):
    """What the trial showed."""

    #: The version that was saved when the job was evicted, from which it went on.
    version: int
    #: Seconds from SIGTERM until the job was saved and gone.
    eviction_seconds: float
    #: Seconds of work that were not saved.
    lost_seconds: float
    #: Why work was lost, and what helps.
    obstacle: str | None


class UnfoundJob(TypedDict):
    """A job of which no host that answers shows the newest version that this machine has seen."""

    #: The job.
    job: str
    #: The version that was seen.
    version: int
    #: When its save began, Unix seconds.
    created: int


class UnreadableJob(TypedDict):
    """The directory of a job that can't be read."""

    #: The file or directory.
    path: str
    #: Why it can't be read.
    why: str


class VerifiedCheckpoint(TypedDict):
    """What verification found of a checkpoint."""

    #: Name of the job.
    job: str
    #: Version of the checkpoint within the job.
    version: int
    #: Shards that are whole, as far as `checked` of the report says.
    good: list[Holder]
    #: Shards that are missing or damaged.
    bad: list[BadShard]
    #: How many more shards can be lost; None if it can't be restored now.
    can_lose: int | None
    #: How many shards could not be checked because hosts that may have them do not answer.
    away: int
    #: Whether the checkpoint can't be restored even if these hosts come back. The exit status is 7 when any
    #: checkpoint is lost, and 5 when none is lost and one can't be restored now.
    lost: bool


class VerifyReport(TypedDict):
    """Answer of `ckpt verify`."""

    #: The checkpoints that were verified, by job and then by version.
    checkpoints: list[VerifiedCheckpoint]
    #: What of each shard was checked.
    checked: Checked
    #: Whether every block was read and checked.
    read_data: bool
    #: How many random blocks of each shard were read, if only a sample was.
    sampled_blocks: int | None
    #: Bytes of blocks that were read and checked.
    read_bytes: int
    #: Versions that no host shows, although their owner did not delete them.
    gaps: list[str]
    #: Hosts that did not answer.
    silent: list[HostNote]


class WatchReport(TypedDict):
    """Answer of `ckpt watch --once`."""

    #: Name of the job.
    job: str
    #: The directory that was watched.
    directory: str
    #: How many directories were saved.
    saves: int
    #: How many saves failed and were tried again.
    failed_saves: int
    #: The version that was saved last; None if there was none to save.
    version: int | None
    #: Directories that were not saved, because nothing shows that they are whole.
    passed_over: list[str]


class WatchedSave(TypedDict):
    """A directory that `ckpt watch` saved: with `--json`, one line for each."""

    #: Name of the directory.
    name: str
    #: The report of the save.
    saved: SaveReport


class WorkHealth(TypedDict):
    """The work of jobs under `ckpt run` on this machine."""

    #: How many jobs run now.
    running: int
    #: Seconds of their work that no version holds.
    at_risk_seconds: float
    #: How often a job lost its machine.
    evictions: int
    #: How often of these it could go on from a saved state.
    survived: int
    #: Seconds of work that did not have to be repeated.
    rescued_seconds: float
    #: Seconds of work that had to be repeated.
    lost_seconds: float
    #: The job that lost its machine last with a save that had failed, and why it had; None if there was none.
    why: str | None


class JobLedger(LedgerSum):
    """The part of a job in the ledger."""

    #: Name of the job.
    job: str
    #: Why its last save failed when it lost its machine, the newest reason; None if none failed.
    why: str | None


class ShowReport(ListedCheckpoint):
    """Answer of `ckpt show`."""

    #: `file`, `tree` or `stream`.
    kind: str
    #: Whether segments are encrypted.
    encrypted: bool
    #: Segments of which bytes are stored: the rows of the image, without those of piece hashes and of the
    #: index.
    segments: int
    #: Bytes in segments that are all zero.
    zero_bytes: int
    #: Bytes of one shard.
    shard_bytes: int
    #: Which host holds which shard.
    holders: list[Holder]
    #: The files of the image.
    files: list[ShownFile]
    #: Hosts that did not answer.
    silent: list[HostNote]
