//! The files of the models: JSON, readable only by the user, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use codec::hex;
use placement::AvailabilityBitmap;
use placement::hazard::Trial;
use protocol::identity::HostId;
use protocol::wire::learning::HostSums;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{HOSTS_MAX, Models, Source, Sources};
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

/// The form of a trial.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Trial")]
pub(super) struct TrialText {
    landmarks: u64,
    shipped: f64,
    refitted: f64,
}

/// The form of a model: its parameters.
pub(super) mod parameters {
    use placement::hazard::HazardModel;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        model: &HazardModel,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        model.parameters().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<HazardModel, D::Error> {
        let parameters = Vec::deserialize(deserializer)?;
        HazardModel::from_parameters(&parameters).map_err(D::Error::custom)
    }
}

/// The number of the form, which each file has beside its content.
#[derive(Serialize, Deserialize)]
struct Version {
    version: u32,
}

/// A file as it is written.
#[derive(Serialize)]
struct FileText<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct SourcesText {
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
    read(path)
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
                presence: hex::decode(presence)?,
                guest: hex::decode(guest)?,
            };
            Some(sums.check().ok()?)
        }
    };
    let bitmap = |digits: &String| AvailabilityBitmap::from_bytes(&hex::decode(digits)?).ok();
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
    write(models_path, &models)
}

fn sources_text(sources: &Sources) -> SourcesText {
    let host = |(id, source): (&HostId, &Source)| SourceText {
        id: id.hex(),
        first_heard: source.first_heard,
        last_heard: source.last_heard,
        sums: source.sums.as_ref().map(|sums| {
            let sums = sums.to_wire();
            (
                sums.model,
                hex::encode(&sums.presence),
                hex::encode(&sums.guest),
            )
        }),
        bitmaps: source.bitmaps.as_ref().map(|[presence, guest]| {
            (
                hex::encode(&presence.to_bytes()),
                hex::encode(&guest.to_bytes()),
            )
        }),
    };
    SourcesText {
        hosts: sources.0.iter().map(host).collect(),
    }
}

/// The content of a file; that of an empty one if there is none.
fn read<T: DeserializeOwned + Default>(path: &Path) -> Result<T, LearningError> {
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
    let parsed = |cause: serde_json::Error| malformed(path, cause.to_string());
    let Version { version } = serde_json::from_str(&text).map_err(parsed)?;
    if version != VERSION {
        return Err(malformed(path, format!("version {version} is not known")));
    }
    serde_json::from_str(&text).map_err(parsed)
}

fn write<T: Serialize>(path: &Path, content: &T) -> Result<(), LearningError> {
    let failed = |cause| LearningError::Io {
        path: path.to_owned(),
        cause,
    };
    let file = FileText {
        version: VERSION,
        content,
    };
    let text = serde_json::to_string(&file).map_err(|cause| failed(cause.into()))?;
    file_lock::replace(path, &text).map_err(failed)
}

fn malformed(path: &Path, what: String) -> LearningError {
    LearningError::Malformed {
        path: path.to_owned(),
        what,
    }
}
