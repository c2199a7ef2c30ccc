//! Reads and writes the plain trace format (`docs/research/traces.md`).

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use placement::state::AvailabilityState;

use super::{RawHost, RawTrace, Sample};

/// Names of the states that intervals can have beside `up` and `down`.
const STATES: [(&str, AvailabilityState); 4] = [
    ("S1", AvailabilityState::Idle),
    ("S2", AvailabilityState::Busy),
    ("S3", AvailabilityState::CpuTaken),
    ("S4", AvailabilityState::Thrashing),
];
/// Times have to be below this, some 35,000 years after 1970, so that sums of times don't overflow.
const UNIX_SECONDS_MAX: u64 = 1 << 40;
/// Level of zstd at which files are compressed.
const COMPRESSION_LEVEL: i32 = 9;

/// Whether `folder` holds a trace: it has a `trace.csv`.
#[must_use]
pub fn is_trace(folder: &Path) -> bool {
    folder.join("trace.csv").is_file()
}

/// The folder itself if it is a trace, else the traces in it, sorted by name.
///
/// # Errors
/// If the folder can't be read, or holds no trace.
pub fn traces_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if is_trace(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let mut traces = Vec::new();
    for entry in folder
        .read_dir()
        .with_context(|| format!("reading {}", folder.display()))?
    {
        let path = entry?.path();
        if is_trace(&path) {
            traces.push(path);
        }
    }
    traces.sort();
    if traces.is_empty() {
        bail!(
            "no trace in {}: a trace is a folder with trace.csv, see docs/research/traces.md; \
             ckpt-store history writes one",
            folder.display()
        );
    }
    Ok(traces)
}

/// Reads the trace in `folder`.
///
/// # Errors
/// If a file is absent, unreadable, or has a line that is not in the format (the error names the
/// file and the line).
pub fn read(folder: &Path) -> Result<RawTrace> {
    let mut trace = RawTrace::default();
    for_each_line(&folder.join("trace.csv"), "key,value", |line| {
        let (key, value) = line.split_once(',').context("no comma")?;
        match key {
            "name" => trace.name = value.to_owned(),
            "description" => trace.description = value.to_owned(),
            "sample_seconds" => trace.sample_seconds = value.parse().context("sample_seconds")?,
            "interval_seconds" => {
                trace.interval_seconds = value.parse().context("interval_seconds")?;
            }
            other => bail!("unknown key {other:?}"),
        }
        Ok(())
    })?;
    ensure!(
        trace.sample_seconds > 0,
        "{}: sample_seconds is missing",
        folder.display()
    );
    for_each_line(&folder.join("hosts.csv"), "host,site,owner", |line| {
        let [host, site, owner] = fields(line)?;
        let raw = RawHost {
            site: site.into(),
            owner: owner.into(),
            ..RawHost::default()
        };
        ensure!(
            trace.hosts.insert(host.into(), raw).is_none(),
            "host {host:?} twice"
        );
        Ok(())
    })?;
    if let Some(path) = present(folder, "samples.csv") {
        for_each_line(&path, "host,unix_seconds,cpu,memory", |line| {
            read_sample(&mut trace, line)
        })?;
    }
    if let Some(path) = present(folder, "intervals.csv") {
        for_each_line(&path, "host,from,to,state", |line| {
            read_interval(&mut trace, line)
        })?;
    }
    Ok(trace)
}

fn read_sample(trace: &mut RawTrace, line: &str) -> Result<()> {
    let [host, time, cpu, memory] = fields(line)?;
    let cpu: f32 = cpu.parse().context("cpu")?;
    let memory = if memory.is_empty() {
        None
    } else {
        Some(memory.parse().context("memory")?)
    };
    let shares = [Some(cpu), memory];
    ensure!(
        shares
            .iter()
            .flatten()
            .all(|x: &f32| x.is_finite() && *x >= 0.0),
        "not a share"
    );
    let unix_seconds = time.parse().context("unix_seconds")?;
    ensure!(unix_seconds < UNIX_SECONDS_MAX, "unix_seconds is too large");
    host_of(trace, host)?.samples.push(Sample {
        unix_seconds,
        cpu,
        memory,
    });
    Ok(())
}

fn read_interval(trace: &mut RawTrace, line: &str) -> Result<()> {
    let [host, from, to, state] = fields(line)?;
    let span: Range<u64> = from.parse().context("from")?..to.parse().context("to")?;
    ensure!(span.start < span.end, "interval ends before it begins");
    ensure!(span.end < UNIX_SECONDS_MAX, "to is too large");
    let host = host_of(trace, host)?;
    match state {
        "up" => host.up.push(span),
        "down" => host.down.push(span),
        other => match STATES.iter().find(|(name, _)| *name == other) {
            Some((_, state)) => host.states.push((span, *state)),
            None => bail!("state {other:?}: expected up, down or S1 to S4"),
        },
    }
    Ok(())
}

/// The host that a line of `samples.csv` or `intervals.csv` names.
fn host_of<'a>(trace: &'a mut RawTrace, name: &str) -> Result<&'a mut RawHost> {
    trace
        .hosts
        .get_mut(name)
        .with_context(|| format!("host {name:?} is not in hosts.csv"))
}

fn fields<const N: usize>(line: &str) -> Result<[&str; N]> {
    let fields: Vec<&str> = line.split(',').collect();
    let found = fields.len();
    fields
        .try_into()
        .map_err(|_| anyhow::anyhow!("{found} fields: expected {N}"))
}

/// Path of the table `name` or of its compressed form, whichever is there.
fn present(folder: &Path, name: &str) -> Option<PathBuf> {
    [folder.join(name), folder.join(format!("{name}.zst"))]
        .into_iter()
        .find(|path| path.is_file())
}

/// Calls `each` with every line after the first one, which must be `header`. Empty lines are skipped. Files
/// called `.zst` are decompressed.
///
/// # Errors
/// If the file can't be read or has another header, and the first error of `each`, with file and line.
pub fn for_each_line(
    path: &Path,
    header: &str,
    mut each: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let reader: Box<dyn BufRead> = if path.extension().is_some_and(|ending| ending == "zst") {
        Box::new(BufReader::new(zstd::Decoder::new(file)?))
    } else {
        Box::new(BufReader::new(file))
    };
    for (number, line) in reader.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), number + 1);
        let line = line.with_context(place)?;
        let line = line.trim_end_matches('\r');
        if number == 0 {
            ensure!(
                line == header,
                "{}: header {line:?}, expected {header:?}",
                place()
            );
        } else if !line.is_empty() {
            each(line).with_context(place)?;
        }
    }
    Ok(())
}

/// Writes a trace into `folder`, which is created. The tables of samples and of intervals are compressed.
///
/// # Errors
/// If a name holds a comma or a line break, or writing fails.
pub fn write(trace: &RawTrace, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let texts = trace
        .hosts
        .iter()
        .flat_map(|(name, host)| [name, &host.site, &host.owner]);
    for text in texts {
        ensure!(
            !text.contains([',', '\n', '\r']),
            "name {text:?} holds a comma or line break"
        );
    }
    let RawTrace {
        name,
        description,
        sample_seconds,
        ..
    } = trace;
    let mut about = format!(
        "key,value\nname,{name}\ndescription,{description}\nsample_seconds,{sample_seconds}\n"
    );
    if trace.interval_seconds > 0 {
        about += &format!("interval_seconds,{}\n", trace.interval_seconds);
    }
    std::fs::write(folder.join("trace.csv"), about).context("writing trace.csv")?;
    let mut hosts = String::from("host,site,owner\n");
    for (name, host) in &trace.hosts {
        hosts += &format!("{name},{},{}\n", host.site, host.owner);
    }
    std::fs::write(folder.join("hosts.csv"), hosts).context("writing hosts.csv")?;
    write_samples(trace, folder).context("writing samples.csv.zst")?;
    write_intervals(trace, folder).context("writing intervals.csv.zst")
}

fn write_samples(trace: &RawTrace, folder: &Path) -> Result<()> {
    if trace.hosts.values().all(|host| host.samples.is_empty()) {
        return Ok(());
    }
    let mut file = compressed(&folder.join("samples.csv.zst"))?;
    writeln!(file, "host,unix_seconds,cpu,memory")?;
    for (name, host) in &trace.hosts {
        for sample in &host.samples {
            let memory = sample
                .memory
                .map(|share| format!("{share:.3}"))
                .unwrap_or_default();
            writeln!(
                file,
                "{name},{},{:.3},{memory}",
                sample.unix_seconds, sample.cpu
            )?;
        }
    }
    finish(file)
}

fn write_intervals(trace: &RawTrace, folder: &Path) -> Result<()> {
    let mut file = compressed(&folder.join("intervals.csv.zst"))?;
    writeln!(file, "host,from,to,state")?;
    for (name, host) in &trace.hosts {
        let up = host.up.iter().map(|span| (span, "up"));
        let down = host.down.iter().map(|span| (span, "down"));
        let states = host.states.iter().filter_map(|(span, state)| {
            let (name, _) = STATES.iter().find(|(_, one)| one == state)?;
            Some((span, *name))
        });
        for (span, state) in up.chain(down).chain(states) {
            writeln!(file, "{name},{},{},{state}", span.start, span.end)?;
        }
    }
    finish(file)
}

type Compressed = BufWriter<zstd::Encoder<'static, File>>;

fn compressed(path: &Path) -> Result<Compressed> {
    Ok(BufWriter::new(zstd::Encoder::new(
        File::create(path)?,
        COMPRESSION_LEVEL,
    )?))
}

fn finish(file: Compressed) -> Result<()> {
    file.into_inner()
        .map_err(|error| error.into_error())?
        .finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> RawTrace {
        let host = RawHost {
            site: "s".into(),
            owner: String::new(),
            samples: vec![
                Sample {
                    unix_seconds: 300,
                    cpu: 0.25,
                    memory: Some(0.5),
                },
                Sample {
                    unix_seconds: 600,
                    cpu: 1.5,
                    memory: None,
                },
            ],
            up: std::iter::once(1000..2000).collect(),
            down: std::iter::once(2000..2100).collect(),
            states: vec![(3000..3010, AvailabilityState::Thrashing)],
        };
        RawTrace {
            name: "small".into(),
            description: "two samples, two intervals".into(),
            sample_seconds: 300,
            interval_seconds: 6,
            hosts: [("h".to_owned(), host)].into(),
        }
    }

    #[test]
    fn a_trace_written_and_read_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        write(&trace(), folder.path()).unwrap();
        assert!(is_trace(folder.path()));
        let read = read(folder.path()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", trace()));
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let folder = tempfile::tempdir().unwrap();
        write(&trace(), folder.path()).unwrap();
        let path = folder.path().join("intervals.csv");
        std::fs::write(&path, "host,from,to,state\nh,0,10,up\nh,20,10,up\n").unwrap();
        let error = format!("{:#}", read(folder.path()).unwrap_err());
        assert!(
            error.contains("intervals.csv:3: interval ends before it begins"),
            "{error}"
        );
        for (line, wrong) in [
            ("h,0,10,S5", "S1 to S4"),
            ("h,0,99999999999999,up", "too large"),
            ("h,0.5,10,up", "from"),
            ("h,0,10", "3 fields"),
        ] {
            std::fs::write(&path, format!("host,from,to,state\n{line}\n")).unwrap();
            let error = format!("{:#}", read(folder.path()).unwrap_err());
            assert!(
                error.contains("intervals.csv:2:") && error.contains(wrong),
                "{error}"
            );
        }
        std::fs::write(&path, "host,from,to,state\nx,0,10,up\n").unwrap();
        let error = format!("{:#}", read(folder.path()).unwrap_err());
        assert!(error.contains("\"x\" is not in hosts.csv"), "{error}");
        let path = folder.path().join("trace.csv");
        std::fs::write(&path, "key,value\nsample_seconds,300\ncolour,red\n").unwrap();
        let error = format!("{:#}", read(folder.path()).unwrap_err());
        assert!(
            error.contains("trace.csv:3: unknown key \"colour\""),
            "{error}"
        );
    }

    #[test]
    fn a_name_with_a_comma_is_not_written() {
        let mut trace = trace();
        trace.hosts.insert("a,b".into(), RawHost::default());
        assert!(write(&trace, tempfile::tempdir().unwrap().path()).is_err());
    }
}
