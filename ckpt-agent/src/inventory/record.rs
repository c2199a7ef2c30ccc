//! What is kept of a manifest that a host has shown: in memory no more than lists need, so that there is room for
//! very many.

use std::sync::Arc;

use codec::grant::Grant;
use codec::hash::ManifestHash;
use codec::keys::Keys;
use codec::labels::Labels;
use codec::manifest::{Manifest, ManifestError, Mark, Public, Summary};
use codec::pieces::BaseRef;
use codec::{CheckpointId, JobId, PublicKey};

use super::aside::Part;

/// Why a checkpoint that hosts show can't be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFailed {
    /// Its manifest does not open.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Its manifest was put into a file, which can't be read now.
    #[error("the manifest can't be read again: {0}")]
    Unread(String),
}

/// A manifest with a checked signature.
#[derive(Clone, Debug)]
pub struct KnownManifest {
    public: Public,
    hash: ManifestHash,
    signer: PublicKey,
    grant: Option<Arc<Grant>>,
    brief: Result<Arc<Brief>, ManifestError>,
    body: Body,
}

/// The bytes of a manifest.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Here(Box<[u8]>),
    Aside(Part),
}

impl PartialEq for KnownManifest {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for KnownManifest {}

impl KnownManifest {
    pub(super) fn new(
        manifest: &Manifest,
        grant: Option<Arc<Grant>>,
        brief: Result<Arc<Brief>, ManifestError>,
        body: Body,
    ) -> Self {
        Self {
            public: manifest.public().clone(),
            hash: manifest.hash(),
            signer: manifest.signer(),
            grant,
            brief,
            body,
        }
    }

    /// The part that hosts can read.
    pub const fn public(&self) -> &Public {
        &self.public
    }

    /// The hash of the manifest.
    pub const fn hash(&self) -> ManifestHash {
        self.hash
    }

    /// The key that signed the manifest.
    pub const fn signer(&self) -> PublicKey {
        self.signer
    }

    /// The grant that allowed the signer to sign; `None` if the owner signed.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_deref()
    }

    /// The part of its summary that is in memory.
    ///
    /// # Errors
    /// When the summary does not open.
    pub fn brief(&self) -> Result<&Arc<Brief>, &ManifestError> {
        self.brief.as_ref()
    }

    /// The manifest.
    ///
    /// # Errors
    /// When it can't be read again.
    pub fn whole(&self) -> Result<Manifest, OpenFailed> {
        let bytes = match &self.body {
            Body::Here(bytes) => bytes.to_vec(),
            Body::Aside(part) => part
                .read()
                .map_err(|cause| OpenFailed::Unread(cause.to_string()))?,
        };
        Ok(Manifest::parse_again(bytes, self.hash)?)
    }

    /// Opens the summary.
    ///
    /// # Errors
    /// When it does not open, or the manifest can't be read again.
    pub fn open(&self, keys: &Keys) -> Result<Summary, OpenFailed> {
        Ok(self.whole()?.open(keys)?)
    }

    /// Bytes of memory, about, without the grant and what it builds on, which it shares with others.
    pub(super) fn memory(&self) -> usize {
        let brief = match &self.brief {
            Ok(brief) => brief.memory(),
            Err(_) => size_of::<ManifestError>(),
        };
        let body = match &self.body {
            Body::Here(bytes) => bytes.len(),
            Body::Aside(_) => 0,
        };
        size_of::<Self>() + size_of_val(self.public.roots.as_slice()) + brief + body
    }
}

/// What lists need of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brief {
    /// Name of the job.
    pub job: JobId,
    /// Sum of the file sizes, holes included.
    pub image_bytes: u64,
    /// Sum of the compressed lengths of the image's segments.
    pub stored_bytes: u64,
    /// Labels that the user gave the checkpoint.
    pub labels: Labels,
    /// Why the image is not known to be one whole state; `None` if it is.
    pub mark: Option<Mark>,
    /// Whether it is a remnant: rows of an interrupted save, which nobody can restore.
    pub is_remnant: bool,
    /// All checkpoints of which a restore reads rows.
    pub needs: Arc<[Arc<BaseRef>]>,
    /// How many of them are no origins: the base, if there is one, comes first.
    bases: usize,
    /// The origins that are kept for their rows only, a bit for each.
    for_rows: u64,
}

// A bit for each origin.
const _: () = assert!(codec::layers::ORIGINS_MAX <= u64::BITS as usize);

impl Brief {
    /// Of a summary. `share` returns a reference that equals this one, and that others may have, too.
    pub(super) fn of(summary: &Summary, mut share: impl FnMut(BaseRef) -> Arc<BaseRef>) -> Self {
        let origins = summary.tail.chain.iter();
        let origins = origins.flat_map(|chain| &chain.origins).enumerate();
        let for_rows = origins.filter(|(_, origin)| !origin.is_version);
        Self {
            job: summary.job.clone(),
            image_bytes: summary.image_bytes,
            stored_bytes: summary.stored_bytes,
            labels: summary.tail.labels.clone(),
            mark: summary.tail.mark,
            is_remnant: summary.tail.is_remnant,
            needs: summary.needs().map(&mut share).collect(),
            bases: usize::from(summary.tail.base.is_some()),
            for_rows: for_rows.fold(0, |bits, (at, _)| bits | 1 << at),
        }
    }

    /// All checkpoints of which a restore reads rows.
    pub fn needs(&self) -> impl Iterator<Item = BaseRef> {
        self.needs.iter().map(|need| **need)
    }

    /// Its origins, and whether each is kept for its rows only.
    pub fn origins(&self) -> impl Iterator<Item = (CheckpointId, bool)> {
        let origins = self.needs.iter().skip(self.bases).enumerate();
        origins.map(|(at, need)| (need.checkpoint, self.for_rows >> at & 1 == 1))
    }

    fn memory(&self) -> usize {
        let labels: usize = self
            .labels
            .iter()
            .map(|(key, value)| LABEL_MEMORY + key.len() + value.len())
            .sum();
        size_of::<Self>() + self.job.as_str().len() + labels + size_of_val(&*self.needs)
    }
}

/// Bytes of memory for a label apart from its text.
const LABEL_MEMORY: usize = 2 * size_of::<String>();
