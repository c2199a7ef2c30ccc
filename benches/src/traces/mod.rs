//! Importers of published traces into the trace format of `docs/research/traces.md`.

mod archive;
mod bitbrains;
mod osg;
mod planetlab;
mod spot;
pub mod time;
mod tor;

use std::path::Path;

pub use ::traces::{RawHost, RawTrace, Sample, Trace, TracedHost, format, overlay};
use anyhow::Result;

/// The sets that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TraceSet {
    /// Bitbrains GWA-T-12 "Rnd": load and off times of virtual machines.
    Bitbrains,
    /// Declared outages of Open Science Grid resources.
    Osg,
    /// PlanetLab CoMon CPU load.
    Planetlab,
    /// Availability of spot instances.
    Spot,
    /// Presence of Tor relays.
    Tor,
}

/// Reads one of the known sets from the folder or file `source`.
///
/// # Errors
/// If the source can't be read or is not in the set's format.
pub fn import(set: TraceSet, source: &Path) -> Result<RawTrace> {
    match set {
        TraceSet::Bitbrains => bitbrains::import(source),
        TraceSet::Osg => osg::import(source),
        TraceSet::Planetlab => planetlab::import(source),
        TraceSet::Spot => spot::import(source),
        TraceSet::Tor => tor::import(source),
    }
}
