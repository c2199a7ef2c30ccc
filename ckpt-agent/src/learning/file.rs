//! The files of the models: JSON, readable only by the user, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use placement::AvailabilityBitmap;
use placement::hazard::{HazardModel, Trial};
use protocol::identity::HostId;
use protocol::wire::learning::HostSums;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Candidate, HOSTS_MAX, ModelState, Models, Source, Sources, Tried};
use crate::file_lock;

/// Largest file that is read, bytes: [`HOSTS_MAX`] hosts with 19 KB of sums and at most 8 KB of bitmaps.
const FILE_BYTES_MAX: u64 = 40 << 20;

/// How long another process that uses the files is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

const VERSION: u32 = 1;

/// Why the files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LearningError {
    /// Reading or writing failed.
    #[error("{path}: {cause}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Why the system refused it.
        cause: io::Error,
    },
    /// The file has other content than expected.
    #[error("{path}: {what}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong and where.
        what: String,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct ModelsText {
    version: u32,
    collected: u64,
    presence: StateText,
    guest: StateText,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct StateText {
    since: u64,
    used: Option<CandidateText>,
    candidate: Option<CandidateText>,
    trials: Vec<TrialText>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CandidateText {
    at: u64,
    hosts: usize,
    landmarks: f64,
    parameters: Vec<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TrialText {
    at: u64,
    landmarks: u64,
    shipped: f64,
    refitted: f64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct SourcesText {
    version: u32,
    hosts: Vec<SourceText>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SourceText {
    id: String,
    first_heard: u64,
    last_heard: u64,
    /// Number of the model, and the sums of presence and guest in hexadecimal.
    sums: Option<(u64, String, String)>,
    /// Bitmaps of presence and guest in hexadecimal.
    bitmaps: Option<(String, String)>,
}

/// Reads the file of the models. If there is none, nothing was learnt yet.
pub(super) fn read_models(path: &Path) -> Result<Models, LearningError> {
    let text: ModelsText = read(path)?;
    let state = |text: StateText| {
        Ok::<_, String>(ModelState {
            used: text.used.map(candidate).transpose()?,
            since: text.since,
            candidate: text.candidate.map(candidate).transpose()?,
            trials: text.trials.into_iter().map(tried).collect(),
        })
    };
    let models = || {
        Ok::<_, String>(Models {
            collected: text.collected,
            presence: state(text.presence)?,
            guest: state(text.guest)?,
        })
    };
    models().map_err(|what| malformed(path, what))
}

fn candidate(text: CandidateText) -> Result<Candidate, String> {
    Ok(Candidate {
        at: text.at,
        hosts: text.hosts,
        landmarks: text.landmarks,
        model: HazardModel::from_parameters(&text.parameters).map_err(|cause| cause.to_string())?,
    })
}

fn tried(text: TrialText) -> Tried {
    Tried {
        at: text.at,
        trial: Trial {
            landmarks: text.landmarks,
            shipped: text.shipped,
            refitted: text.refitted,
        },
    }
}

fn read_sources(path: &Path) -> Result<Sources, LearningError> {
    let text: SourcesText = read(path)?;
    let mut sources = Sources::default();
    for host in text.hosts.into_iter().take(HOSTS_MAX) {
        let read = source(&host).ok_or_else(|| malformed(path, format!("host {:?}", host.id)));
        let (id, source) = read?;
        sources.0.insert(id, source);
    }
    Ok(sources)
}

fn source(text: &SourceText) -> Option<(HostId, Source)> {
    let sums = match &text.sums {
        None => None,
        Some((model, presence, guest)) => {
            let sums = HostSums {
                model: *model,
                presence: from_hex(presence)?,
                guest: from_hex(guest)?,
            };
            Some(sums.check().ok()?)
        }
    };
    let bitmap = |hex: &String| AvailabilityBitmap::from_bytes(&from_hex(hex)?).ok();
    let bitmaps = match &text.bitmaps {
        None => None,
        Some((presence, guest)) => Some([bitmap(presence)?, bitmap(guest)?]),
    };
    let source = Source {
        first_heard: text.first_heard,
        last_heard: text.last_heard,
        sums,
        bitmaps,
    };
    Some((HostId::from_hex(&text.id)?, source))
}

/// Reads both files, applies `change`, and replaces both in one step each, under a lock. Files that can't be
/// understood are replaced by new ones.
pub(super) fn update(
    models_path: &Path,
    sources_path: &Path,
    change: impl FnOnce(&mut Models, &mut Sources),
) -> Result<(), LearningError> {
    let failed = |cause| LearningError::Io {
        path: models_path.to_owned(),
        cause,
    };
    let _lock = file_lock::lock_beside(models_path, LOCK_TIMEOUT).map_err(failed)?;
    let mut models = read_models(models_path).unwrap_or_default();
    let mut sources = read_sources(sources_path).unwrap_or_default();
    change(&mut models, &mut sources);
    write(sources_path, &sources_text(&sources))?;
    write(models_path, &models_text(&models))
}

fn models_text(models: &Models) -> ModelsText {
    let candidate = |one: &Candidate| CandidateText {
        at: one.at,
        hosts: one.hosts,
        landmarks: one.landmarks,
        parameters: one.model.parameters(),
    };
    let trial = |one: &Tried| TrialText {
        at: one.at,
        landmarks: one.trial.landmarks,
        shipped: one.trial.shipped,
        refitted: one.trial.refitted,
    };
    let state = |state: &ModelState| StateText {
        since: state.since,
        used: state.used.as_ref().map(candidate),
        candidate: state.candidate.as_ref().map(candidate),
        trials: state.trials.iter().map(trial).collect(),
    };
    ModelsText {
        version: VERSION,
        collected: models.collected,
        presence: state(&models.presence),
        guest: state(&models.guest),
    }
}

fn sources_text(sources: &Sources) -> SourcesText {
    let host = |(id, source): (&HostId, &Source)| SourceText {
        id: id.hex(),
        first_heard: source.first_heard,
        last_heard: source.last_heard,
        sums: source.sums.as_ref().map(|sums| {
            let sums = sums.to_wire();
            (sums.model, hex(&sums.presence), hex(&sums.guest))
        }),
        bitmaps: source
            .bitmaps
            .as_ref()
            .map(|[presence, guest]| (hex(&presence.to_bytes()), hex(&guest.to_bytes()))),
    };
    SourcesText {
        version: VERSION,
        hosts: sources.0.iter().map(host).collect(),
    }
}

/// The content of a file; that of an empty one if there is none.
fn read<T: DeserializeOwned + Default + Versioned>(path: &Path) -> Result<T, LearningError> {
    let failed = |cause| LearningError::Io {
        path: path.to_owned(),
        cause,
    };
    match fs::metadata(path) {
        Ok(data) if data.len() > FILE_BYTES_MAX => {
            let what = format!("larger than {FILE_BYTES_MAX} bytes");
            return Err(malformed(path, what));
        }
        Ok(_) => {}
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        Err(cause) => return Err(failed(cause)),
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let content: T =
        serde_json::from_str(&text).map_err(|cause| malformed(path, cause.to_string()))?;
    match content.version() {
        VERSION => Ok(content),
        other => Err(malformed(path, format!("version {other} is not known"))),
    }
}

trait Versioned {
    fn version(&self) -> u32;
}

impl Versioned for ModelsText {
    fn version(&self) -> u32 {
        self.version
    }
}

impl Versioned for SourcesText {
    fn version(&self) -> u32 {
        self.version
    }
}

fn write<T: Serialize>(path: &Path, content: &T) -> Result<(), LearningError> {
    let failed = |cause| LearningError::Io {
        path: path.to_owned(),
        cause,
    };
    let text = serde_json::to_string(content).map_err(|cause| failed(cause.into()))?;
    file_lock::replace(path, &text).map_err(failed)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

fn malformed(path: &Path, what: String) -> LearningError {
    LearningError::Malformed {
        path: path.to_owned(),
        what,
    }
}
