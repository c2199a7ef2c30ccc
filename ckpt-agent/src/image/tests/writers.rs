//! Whatever writes to a file while it is saved, and on whatever file system: the save fails, or what it read was there
//! at one moment.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A writer puts the number of its round into each cell of the file, one after the other, and then into those of a
/// second file.
const CELLS: u64 = 24;
const CELL_BYTES: u64 = 256 << 10;

/// Saves with each writer on each file system.
const SAVES: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Writer {
    InPlace,
    Renaming,
    Mapping,
    Appending,
}

fn cell(at: u64) -> u64 {
    at * CELL_BYTES
}

/// One round of a writer that is no process of its own.
fn write_round(writer: Writer, dir: &Path, round: u64) -> std::io::Result<()> {
    for name in ["one", "two"] {
        let path = dir.join(name);
        match writer {
            Writer::InPlace => {
                let file = File::options().write(true).open(&path)?;
                for at in 0..CELLS {
                    file.write_all_at(&round.to_le_bytes(), cell(at))?;
                }
            }
            Writer::Renaming => {
                let next = dir.join("next.tmp");
                fs::write(&next, whole(round))?;
                fs::rename(&next, &path)?;
            }
            Writer::Appending => {
                use std::io::Write;
                File::options().append(true).open(&path)?.write_all(&[7])?;
            }
            Writer::Mapping => {}
        }
    }
    Ok(())
}

fn whole(round: u64) -> Vec<u8> {
    let mut bytes = vec![0; cell(CELLS) as usize];
    for at in 0..CELLS {
        let begin = cell(at) as usize;
        bytes[begin..begin + 8].copy_from_slice(&round.to_le_bytes());
    }
    bytes
}

/// A process that writes rounds through maps until its standard input ends; `None` without Python.
fn mapping(dir: &Path) -> Option<std::process::Child> {
    let script = format!(
        "import mmap, os, select, struct, sys\n\
         maps = []\n\
         for name in ('one', 'two'):\n\
         \x20   fd = os.open(os.path.join(sys.argv[1], name), os.O_RDWR)\n\
         \x20   maps.append(mmap.mmap(fd, 0))\n\
         \x20   os.close(fd)\n\
         n = 0\n\
         print('open', flush=True)\n\
         while not select.select([sys.stdin], [], [], n % 4 * 0.2)[0]:\n\
         \x20   n += 1\n\
         \x20   for m in maps:\n\
         \x20       for at in range({CELLS}):\n\
         \x20           m[at * {CELL_BYTES}:at * {CELL_BYTES} + 8] = struct.pack('<q', n)\n"
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]).arg(dir);
    python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().ok()?;
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take()?);
    std::io::BufRead::read_line(&mut out, &mut line).ok()?;
    (line.trim() == "open").then_some(child)
}

/// Fails unless the cells, in the order in which they are written, were so at one moment: each round goes over them
/// from the first to the last.
fn check(writer: Writer, image: &[u8]) {
    let file_bytes = cell(CELLS) as usize;
    let cells: Vec<u64> = (0..2 * CELLS)
        .map(|at| {
            let file = at / CELLS;
            let begin = file as usize * file_bytes + cell(at % CELLS) as usize;
            u64::from_le_bytes(image[begin..begin + 8].try_into().unwrap())
        })
        .collect();
    let descends = cells.windows(2).all(|two| two[0] >= two[1]);
    let differ = cells[0] - cells[cells.len() - 1];
    assert!(descends && differ <= 1, "{writer:?}: {cells:?}");
}

fn tried(dir: &Path, writer: Writer) -> Option<(usize, usize)> {
    for name in ["one", "two"] {
        fs::write(dir.join(name), whole(0)).unwrap();
    }
    let mut child = match writer {
        Writer::Mapping => Some(mapping(dir)?),
        _ => None,
    };
    let is_over = AtomicBool::new(false);
    let mut saved = 0;
    let mut refused = 0;
    std::thread::scope(|scope| {
        let rounds = || {
            for round in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                write_round(writer, dir, round).unwrap();
                // Some saves fall between two rounds.
                std::thread::sleep(std::time::Duration::from_millis(round % 4 * 200));
            }
        };
        let writing = scope.spawn(rounds);
        let exclude = || {
            let pattern = crate::image::exclude_pattern("*.tmp").unwrap();
            crate::image::Exclude::new(vec![pattern]).unwrap()
        };
        for _ in 0..SAVES {
            let paths = [dir.to_owned()];
            let source = Source::from_paths_without(&paths, STRICT, exclude());
            match source.and_then(drain) {
                Ok(image) => {
                    saved += 1;
                    let mut stream = Vec::new();
                    let mut segments = image.segments.iter();
                    for entry in &image.index.segments {
                        match entry {
                            SegmentEntry::Zero { bytes } => {
                                stream.resize(stream.len() + *bytes as usize, 0);
                            }
                            _ => stream.extend(segments.next().unwrap()),
                        }
                    }
                    if !matches!(writer, Writer::Appending) {
                        check(writer, &stream);
                    }
                }
                Err(SourceError::Changed { .. }) => refused += 1,
                Err(other) => panic!("{writer:?}: {other}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        writing.join().unwrap();
    });
    if let Some(child) = &mut child {
        let _ = child.kill();
        let _ = child.wait();
    }
    Some((saved, refused))
}

#[test]
fn whatever_writes_a_save_fails_or_holds_one_moment() {
    for place in ["/dev/shm", "/tmp", "/var/tmp"] {
        for writer in [
            Writer::InPlace,
            Writer::Renaming,
            Writer::Mapping,
            Writer::Appending,
        ] {
            let Ok(dir) = tempfile::tempdir_in(place) else {
                continue;
            };
            let tried = tried(dir.path(), writer);
            eprintln!("{place} {writer:?}: saved, refused: {tried:?}");
        }
    }
}
