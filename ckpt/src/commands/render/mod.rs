//! Reports as text for people. The same structs are printed as JSON.

pub(super) mod map;
mod models;
mod placement;
mod pool;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use codec::Version;
pub(crate) use command_line::size::format as bytes;
pub(crate) use command_line::text::{Table, count, one_line, shown};
use command_line::time::since;
pub(crate) use command_line::time::utc as time;
use health::span;
use health::text::state;
use health::{Health, HostState};
use protocol::identity::ends_within_days;

use ckpt_agent::unix_time::unix_seconds;
use serde::Serialize;

use ckpt_agent::report::{
    CatReport, Checked, ForgetReport, GarbageItem, GcReport, Holder, HostNote, HostReport,
    HostsReport, HostsSummary, ListReport, ListedCheckpoint, RestoreReport, SaveReport, ShowReport,
    TouchReport, VerifyReport,
};

/// Up to this many silent hosts get a line each; more of them get one line together.
const SILENT_SHOWN: usize = 3;

/// Most hosts that are named one by one because they did not hear of a removal.
const UNINFORMED_SHOWN: usize = 10;

/// Longest state of a host in a table, characters.
const STATE_WIDTH: usize = 40;

/// Whether the user asked for more details (`-v`).
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Sets whether the user asked for more details. Called once, at the start.
pub(crate) fn be_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// The result of a command, as it is printed.
pub(crate) trait Report {
    /// Writes it for people.
    fn human(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Returns it for scripts, as one JSON object.
    fn json(&self) -> String;

    /// Whether to print it on standard error, because standard output has the image or the job's output.
    fn is_for_stderr(&self) -> bool {
        false
    }

    /// The exit status, if the command has others than [`ckpt_agent::report::ExitStatus`].
    fn exit_code(&self) -> Option<u8> {
        None
    }
}

macro_rules! json_of_self {
    () => {
        fn json(&self) -> String {
            crate::commands::render::to_json(self)
        }
    };
}
pub(crate) use json_of_self;

/// Any report as one JSON object.
pub(crate) fn to_json(report: &impl Serialize) -> String {
    serde_json::to_string(report).unwrap_or_else(|cause| format!("{{\"error\":\"{cause}\"}}"))
}

/// Bytes that are printed unchanged.
#[derive(Debug)]
pub(crate) struct Text(pub(super) Vec<u8>);

impl Report for Text {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0)
    }

    fn json(&self) -> String {
        #[derive(Serialize)]
        struct Object {
            text: String,
        }
        to_json(&Object {
            text: String::from_utf8_lossy(&self.0).into_owned(),
        })
    }
}

impl Report for Health {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        health::text::write(out, self)
    }

    json_of_self!();
}

impl Report for SaveReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        for warning in &self.warnings {
            writeln!(out, "warning: {}", one_line(warning))?;
        }
        writeln!(
            out,
            "job {} version {}: {} in {:.1} s (ratio {}), {} on {}, {} stored {:.1} times, survives {}",
            self.job,
            self.version,
            bytes(self.image_bytes),
            self.seconds,
            ratio(self.read_bytes, self.stored_bytes),
            self.redundancy,
            names(&self.holders),
            bytes(self.stored_bytes),
            self.stored_times,
            survives(self.can_lose),
        )?;
        if let Some(resumed) = self.resumed_bytes {
            let resumed = bytes(resumed);
            writeln!(out, "resumes: {resumed} of an interrupted save are used")?;
        }
        if let Some(fence) = self.fence.filter(|fence| fence.fenced) {
            writeln!(
                out,
                "the only successor of version {}: {} of its {} witnesses agreed, {} were needed",
                fence.after, fence.agreed, fence.witnesses, fence.needed
            )?;
        }
        for note in &self.notes {
            writeln!(out, "note: {}", one_line(note))?;
        }
        if let Some(placement) = &self.placement {
            for one in &self.compressed {
                writeln!(
                    out,
                    "compression {}: {} of the image, stored in {} (ratio {})",
                    one.method,
                    bytes(one.bytes),
                    bytes(one.stored_bytes),
                    ratio(one.bytes, one.stored_bytes),
                )?;
            }
            placement.human(out)?;
        }
        if let Some(until) = self.kept_until {
            writeln!(out, "kept until {}", time(until))?;
        }
        let missing = self.holders.iter().filter(|h| h.host.is_none()).count();
        if missing > 0 {
            let have = if missing == 1 { "has" } else { "have" };
            writeln!(out, "degraded: {} {have} no host", count(missing, "shard"))?;
        }
        Ok(())
    }

    json_of_self!();
}

fn names(holders: &[Holder]) -> String {
    let names: Vec<&str> = holders.iter().filter_map(|h| h.host.as_deref()).collect();
    names.join(" ")
}

fn survives(can_lose: usize) -> String {
    match can_lose {
        0 => "the loss of no host".to_owned(),
        1 => "the loss of any 1 of them".to_owned(),
        n => format!("the loss of any {n} of them"),
    }
}

impl Report for RestoreReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        // Skipped versions were reported when they were skipped.
        let Some(version) = self.version else {
            return writeln!(out, "job {}: no checkpoint, nothing restored", self.job);
        };
        if self.dry_run {
            return human_plan(self, version, out);
        }
        writeln!(
            out,
            "job {} version {version}: {} in {:.1} s to {}{}",
            self.job,
            bytes(self.image_bytes),
            self.seconds,
            self.target,
            here_already(self),
        )
    }

    json_of_self!();

    fn is_for_stderr(&self) -> bool {
        self.target == "-"
    }
}

/// How much of an image did not have to be fetched.
fn here_already(report: &RestoreReport) -> String {
    match report.at_hand_bytes {
        0 => String::new(),
        here => format!(", {} were here already", bytes(here)),
    }
}

fn human_plan(report: &RestoreReport, version: Version, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "job {} version {version}: {} in {} would go to {}",
        report.job,
        bytes(report.image_bytes),
        count(usize::try_from(report.files).unwrap_or(usize::MAX), "file"),
        report.target,
    )?;
    writeln!(
        out,
        "{} would be fetched, in about {:.1} s{}",
        bytes(report.fetched_bytes),
        report.seconds,
        here_already(report),
    )?;
    for source in &report.sources {
        writeln!(out, "  {}  {}", source.host, bytes(source.bytes))?;
    }
    Ok(())
}

impl Report for CatReport {
    /// Nothing: the bytes themselves are the answer, and skipped versions were reported when they were
    /// skipped.
    fn human(&self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    json_of_self!();

    fn is_for_stderr(&self) -> bool {
        true
    }
}

impl Report for ListReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut heads = vec![
            "JOB", "VERSION", "SAVED", "IMAGE", "STORED", "CODE", "SHARDS", "STATE",
        ];
        let all = || self.checkpoints.iter();
        let has_leases = all().any(|one| one.kept_until.is_some());
        let has_labels = all().any(|one| !one.labels.is_empty());
        let has_notes = all().any(|one| one.note.is_some());
        heads.extend(has_leases.then_some("KEPT UNTIL"));
        heads.extend(has_labels.then_some("LABELS"));
        heads.extend(has_notes.then_some("NOTE"));
        let mut table = Table::new(&heads);
        let void = all().filter(|one| one.void).count();
        // A thief of a job key may have made very many.
        let is_shown = |one: &&ListedCheckpoint| !one.void || void <= ROWS_OF_ONE_KIND;
        for one in all().filter(is_shown) {
            let mut row = vec![
                one.job.to_string(),
                one.version.to_string(),
                time(one.created),
                bytes(one.image_bytes),
                bytes(one.stored_bytes),
                one.redundancy.to_string(),
                format!("{} of {}", one.shards_found, one.redundancy.total()),
                match one.retired {
                    true => format!("{}, by a retired key", state_of_listed(one)),
                    false => state_of_listed(one),
                },
            ];
            row.extend(has_leases.then(|| one.kept_until.map_or("-".to_owned(), time)));
            row.extend(has_labels.then(|| labels(one)));
            row.extend(has_notes.then(|| one.note.clone().unwrap_or_default()));
            table.row(row);
        }
        table.write(out)?;
        match void {
            0 => {}
            1..=ROWS_OF_ONE_KIND => writeln!(
                out,
                "void key: saved with a job key that its owner has revoked; restored only with --version, removed by: ckpt gc"
            )?,
            void => writeln!(
                out,
                "passed over: {void} versions that were saved with a job key that its owner has revoked; removed by: ckpt gc"
            )?,
        }
        if self.left_out > 0 {
            writeln!(
                out,
                "left out for want of memory: {} versions that were saved with job keys; shown with a larger --memory",
                self.left_out
            )?;
        }
        if self.checkpoints.iter().any(|one| one.marked.is_some()) {
            writeln!(
                out,
                "marked: not known to be one whole state; restored only if no older version is whole, or with --accept-marked"
            )?;
        }
        if self.checkpoints.iter().any(|one| one.kept_for.is_some()) {
            writeln!(
                out,
                "for version N: no version that is restored, but kept because version N uses a part of it; later saves store that part again"
            )?;
        }
        write_silent(out, &self.silent)
    }

    json_of_self!();
}

/// Most lines about things of one kind that are not put into one.
const ROWS_OF_ONE_KIND: usize = 20;

/// A line about garbage of one job and one kind.
fn write_much_garbage(out: &mut dyn Write, same: &[GarbageItem]) -> io::Result<()> {
    let versions = || same.iter().map(|item| item.version);
    let (Some(first), Some(last)) = (versions().min(), versions().max()) else {
        return Ok(());
    };
    let (job, why) = same
        .first()
        .map_or(("", ""), |one| (one.job.as_str(), one.why));
    let count = same.len();
    let shards: usize = same.iter().map(|item| item.shards).sum();
    let all = same.iter().map(|item| item.bytes).sum();
    writeln!(
        out,
        "job {job}, {count} versions from {first} to {last}: {} in {shards} shards: {why}",
        bytes(all)
    )
}

fn state_of_listed(one: &ListedCheckpoint) -> String {
    let state = state(one.can_lose);
    let marked = one.marked.as_ref().map_or("", |_| ", marked");
    let void = if one.void { ", void key" } else { "" };
    let kept_for = one
        .kept_for
        .map(|version| format!(", for version {version}"));
    format!("{state}{marked}{void}{}", kept_for.unwrap_or_default())
}

/// All labels, as `key=value key=value`.
fn labels(one: &ListedCheckpoint) -> String {
    let pairs = one.labels.iter();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(" ")
}

/// A note as one line: `host: what happened there`.
fn of_host(note: &HostNote) -> String {
    format!("{}: {}", one_line(&note.host), one_line(&note.what))
}

/// Writes the line on hosts that hold shards and do not know of a change, if there are any.
fn write_unheard(out: &mut dyn Write, unheard: &[HostNote]) -> io::Result<()> {
    if unheard.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = unheard.iter().map(|note| one_line(&note.host)).collect();
    writeln!(
        out,
        "not informed: {} that hold shards or may hold some: {}; other hosts pass it on",
        count(unheard.len(), "host"),
        names.join(" ")
    )
}

fn write_silent(out: &mut dyn Write, silent: &[HostNote]) -> io::Result<()> {
    if silent.len() <= SILENT_SHOWN || is_verbose() {
        for note in silent {
            writeln!(out, "no answer from {}", of_host(note))?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "{} do not answer; -v shows why",
        count(silent.len(), "host")
    )
}

impl Report for ShowReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let one = &self.checkpoint;
        writeln!(
            out,
            "job {} version {}, saved {}",
            one.job,
            one.version,
            time(one.created)
        )?;
        writeln!(out, "checkpoint {}", one.checkpoint.hex())?;
        if let Some(note) = &one.note {
            writeln!(out, "note: {}", one_line(note))?;
        }
        if !one.labels.is_empty() {
            writeln!(out, "labels: {}", one_line(&labels(one)))?;
        }
        if let Some(until) = one.kept_until {
            writeln!(out, "kept until {}", time(until))?;
        }
        writeln!(
            out,
            "{}: {} image, {} zero, {} stored (ratio {}), {} shards of {}{}",
            what_it_is(&self.kind, self.files.len()),
            bytes(one.image_bytes),
            bytes(self.zero_bytes),
            bytes(one.stored_bytes),
            ratio(one.image_bytes, one.stored_bytes),
            one.redundancy,
            bytes(self.shard_bytes),
            if self.encrypted {
                ", encrypted"
            } else {
                ", NOT ENCRYPTED"
            },
        )?;
        for holder in &self.holders {
            let host = holder.host.as_deref().unwrap_or("- (not found)");
            writeln!(out, "  shard {}  {host}", holder.shard)?;
        }
        writeln!(out, "{}", state(one.can_lose))?;
        let mut table = Table::new(&["MODE", "SIZE", "CHANGED", "FILE"]);
        for file in &self.files {
            let arrow = file.target.as_ref().map_or(String::new(), |target| {
                let sign = if file.kind == "hardlink" { "=" } else { "->" };
                format!(" {sign} {target}")
            });
            table.row(vec![
                format!("{}{:04o}", letter(&file.kind), file.mode),
                bytes(file.size),
                // A stream has neither a name nor a time of change.
                u64::try_from(file.mtime)
                    .ok()
                    .filter(|_| !file.path.is_empty())
                    .map_or_else(|| "-".to_owned(), time),
                format!(
                    "{}{arrow}",
                    if file.path.is_empty() {
                        "-"
                    } else {
                        &file.path
                    }
                ),
            ]);
        }
        table.write(out)?;
        write_silent(out, &self.silent)
    }

    json_of_self!();
}

/// The kind of an image: `a stream`, `a file`, `a tree of 12 files`.
fn what_it_is(kind: &str, files: usize) -> String {
    match (kind, files) {
        ("stream" | "file", 1) => format!("a {kind}"),
        _ => format!("a {kind} of {}", count(files, "file")),
    }
}

fn letter(kind: &str) -> char {
    match kind {
        "directory" => 'd',
        "symlink" => 'l',
        "hardlink" => 'h',
        "fifo" => 'p',
        _ => '-',
    }
}

impl Report for VerifyReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let are = match self.checked {
            Checked::Present => "present, not read",
            Checked::Sampled => "present, some blocks read",
            Checked::Read => "good",
        };
        for one in &self.checkpoints {
            let total = one.good.len() + one.bad.len();
            writeln!(
                out,
                "job {} version {}: {} of {} shards {are}, {}",
                one.job,
                one.version,
                one.good.len(),
                total,
                match (one.lost, one.away) {
                    (true, _) => "LOST".to_owned(),
                    (false, 0) => state(one.can_lose),
                    (false, away) => format!("{}, {away} away", state(one.can_lose)),
                }
            )?;
            for bad in &one.bad {
                let host = bad.host.as_deref().unwrap_or("-");
                let what = one_line(&bad.what);
                writeln!(out, "  shard {} on {host}: {what}", bad.shard)?;
            }
        }
        for gap in &self.gaps {
            writeln!(out, "{gap}")?;
        }
        if self.checkpoints.is_empty() {
            writeln!(out, "no checkpoints")?;
        }
        if self.read_data || self.sampled_blocks.is_some() {
            writeln!(out, "{} read and checked", bytes(self.read_bytes))?;
        }
        write_silent(out, &self.silent)
    }

    json_of_self!();
}

impl Report for ForgetReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        // Where nothing was removed, hosts have nothing to pass on.
        if !self.removed.is_empty() {
            write_unheard(out, &self.unheard)?;
        }
        let is = if self.dry_run {
            "would be removed"
        } else {
            "removed"
        };
        for version in &self.removed {
            writeln!(out, "job {} version {version} {is}", self.job)?;
        }
        if self.removed.is_empty() {
            writeln!(out, "job {}: nothing to remove", self.job)?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        let what = if self.dry_run {
            "not asked"
        } else {
            "not informed"
        };
        if self.silent.len() > UNINFORMED_SHOWN && !is_verbose() {
            let hosts = count(self.silent.len(), "host");
            return writeln!(
                out,
                "{what}: {hosts} that may still hold shards; -v shows which"
            );
        }
        for note in &self.silent {
            writeln!(out, "{what}: {}; it may still hold shards", of_host(note))?;
        }
        Ok(())
    }

    json_of_self!();
}

impl Report for TouchReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        write_unheard(out, &self.unheard)?;
        match self.kept_until {
            Some(until) => writeln!(out, "job {}: kept until {}", self.job, time(until))?,
            None => writeln!(out, "job {}: kept until it is removed", self.job)?,
        }
        for note in &self.silent {
            writeln!(
                out,
                "not informed: {}; other hosts pass it on",
                of_host(note)
            )?;
        }
        Ok(())
    }

    json_of_self!();
}

impl Report for GcReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        write_unheard(out, &self.unheard)?;
        let is_same = |a: &GarbageItem, b: &GarbageItem| a.job == b.job && a.why == b.why;
        for same in self.garbage.chunk_by(is_same) {
            if same.len() > ROWS_OF_ONE_KIND {
                write_much_garbage(out, same)?;
                continue;
            }
            for item in same {
                let GarbageItem {
                    job,
                    version,
                    why,
                    shards,
                    ..
                } = item;
                writeln!(
                    out,
                    "job {job} version {version}: {} in {shards} shards: {why}",
                    bytes(item.bytes)
                )?;
            }
        }
        let total = self.garbage.iter().map(|item| item.bytes).sum();
        match (self.garbage.is_empty(), self.dry_run) {
            (true, _) => writeln!(out, "nothing to remove")?,
            (false, true) => writeln!(out, "{} would be freed", bytes(total))?,
            (false, false) => writeln!(out, "{} freed", bytes(total))?,
        }
        for note in &self.silent {
            let what = match self.dry_run {
                true => "not asked",
                false => "not informed",
            };
            writeln!(out, "{what}: {}", of_host(note))?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }

    json_of_self!();
}

impl Report for HostsReport {
    fn human(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            "HOST",
            "KEY",
            "ADDRESS",
            "SITE",
            "STATE",
            "RTT",
            "FREE",
            "USED",
            "SHARDS",
            "MACHINE",
            "DISK",
            "UP",
            "STAYS 10 H",
        ]);
        for host in &self.hosts {
            let size = |value: Option<u64>| value.map_or("-".to_owned(), bytes);
            let share = |value: Option<f64>| value.map_or("-".to_owned(), placement::share);
            table.row(vec![
                host.name.clone(),
                host.id.chars().take(8).collect(),
                host.addr.clone(),
                host.site.clone().unwrap_or_else(|| "-".to_owned()),
                host_state(host),
                host.rtt_ms
                    .map_or("-".to_owned(), |ms| format!("{ms:.1} ms")),
                size(host.free_bytes),
                size(host.used_bytes),
                host.shards.map_or("-".to_owned(), |n| n.to_string()),
                host.machine.clone().unwrap_or_else(|| "-".to_owned()),
                host.disk.clone().unwrap_or_else(|| "-".to_owned()),
                share(host.availability),
                share(host.stays_10h),
            ]);
        }
        table.write(out)?;
        misnamed(out, &self.hosts)?;
        unreached(out, &self.hosts)?;
        let HostsSummary {
            known,
            up,
            take_shards,
            free_bytes,
        } = self.summary;
        let known = count(known, "host");
        let free = bytes(free_bytes);
        writeln!(
            out,
            "{up} of {known} up, {take_shards} take shards, {free} free"
        )
    }

    json_of_self!();
}

/// Writes which hosts are reported under names that are not theirs.
fn misnamed(out: &mut dyn Write, hosts: &[HostReport]) -> io::Result<()> {
    for host in hosts {
        let Some(reported) = &host.misnamed else {
            continue;
        };
        let name = &host.name;
        let reported = one_line(reported);
        writeln!(
            out,
            "note: a registry reports {name} as {reported}, which is not the name in its certificate"
        )?;
    }
    Ok(())
}

/// Writes which hosts a registry hears and does not reach.
fn unreached(out: &mut dyn Write, hosts: &[HostReport]) -> io::Result<()> {
    for host in hosts.iter().filter(|host| host.unreached) {
        let HostReport { name, addr, .. } = host;
        writeln!(
            out,
            "note: a registry hears {name} and gets no answer at {addr}: a firewall or a router stops what comes from \
             outside (on its machine: ckpt-store status)"
        )?;
    }
    Ok(())
}

/// The state of a host: `up`, the reason why it is not, that it takes no shards, or that its certificate
/// ends soon. Shortened unless the user asked for more details.
fn host_state(host: &HostReport) -> String {
    let silent = host
        .silent_since
        .map(|at| format!("since {}", since(at, unix_seconds())));
    let state = match (&host.error, host.refuses_for_s) {
        (Some(error), _) => match (host.status == HostState::Silent, silent) {
            (true, Some(silent)) => format!("silent {silent}"),
            (true, None) => "silent".to_owned(),
            (false, Some(silent)) => format!("silent {silent}: {error}"),
            (false, None) => error.clone(),
        },
        (None, Some(seconds @ 1..)) => {
            let why = host.why.as_deref();
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            format!("takes no new shards for {}{why}", span(seconds.into()))
        }
        (None, _) => up_until(host),
    };
    match is_verbose() {
        true => state,
        false => shown(&state, STATE_WIDTH),
    }
}

/// The state of a host that is up, with a remark if its certificate ends soon.
fn up_until(host: &HostReport) -> String {
    let now = unix_seconds();
    let days = host
        .certificate_until
        .and_then(|until| ends_within_days(until, now));
    days.map_or("up".to_owned(), |days| {
        format!("up, certificate expires in {days} d")
    })
}

/// How many times smaller the stored bytes are; `-` if nothing is stored. The ratio means little for an
/// image of holes and zeros, so it is cut at 1000.
pub(crate) fn ratio(from: u64, to: u64) -> String {
    if to == 0 {
        return "-".to_owned();
    }
    if from / to >= 1000 {
        return "over 1000".to_owned();
    }
    format!("{:.2}", from as f64 / to as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_kinds_are_readable() {
        assert_eq!(ratio(0, 0), "-");
        assert_eq!(ratio(150, 100), "1.50");
        assert_eq!(ratio(10_000_000_003, 3000), "over 1000");
        assert_eq!(what_it_is("stream", 1), "a stream");
        assert_eq!(what_it_is("tree", 1), "a tree of 1 file");
    }

    #[test]
    fn text_that_strangers_chose_stays_in_its_cell() {
        let trick = "\u{1b}]0;owned\u{7}\u{1b}[2J\nh09  10.0.0.9:7600  lab  up\u{202e}";
        let mut table = Table::new(&["HOST", "SITE"]);
        table.row(vec!["h01".to_owned(), trick.to_owned()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| !line.contains(char::is_control)));
        assert!(
            text.contains(r"\u{1b}]0;owned\u{7}") && text.contains(r"\u{202e}"),
            "{text}"
        );
        let note = HostNote {
            host: "h01".into(),
            what: trick.into(),
        };
        assert!(!of_host(&note).contains(char::is_control));
        assert_eq!(one_line("Zoë's café \\ 1"), "Zoë's café \\ 1");
    }
}
