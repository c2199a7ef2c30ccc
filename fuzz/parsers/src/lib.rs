//! One function for each fuzz target: it parses its input and, if the parser accepts it, checks what the
//! parser promises. A broken promise is a panic.
//!
//! cargo-fuzz runs these functions (`fuzz/fuzz_targets`), and so does `cargo test -p fuzz-parsers`, with
//! simple mutations of the seeds in `fuzz/seeds`.

mod image;
mod local;
mod messages;
mod shard;
mod state;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, of its binary in `fuzz_targets` and of its directory in `seeds`.
    pub name: &'static str,
    /// Parses the bytes and returns whether the parser accepts them. Panics when a promise is broken.
    pub run: fn(&[u8]) -> bool,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("card", messages::card),
    target("certificate", messages::certificate),
    target("class_ad", state::class_ad),
    target("daemon_line", local::daemon_line),
    target("decompress", image::decompress),
    target("fence", state::fence),
    target("footer", shard::footer),
    target("grant", image::grant),
    target("grid", messages::grid),
    target("grid_list", messages::grid_list),
    target("guest_line", local::guest_line),
    target("header", shard::header),
    target("history", state::history),
    target("index", image::index),
    target("job_id", messages::job_id),
    target("job_keys", image::job_keys),
    target("job_notice", state::job_notice),
    target("join_token", messages::join_token),
    target("knowledge", state::knowledge),
    target("known_donors", state::known_donors),
    target("manifest", image::manifest),
    target("manifest_body", image::manifest_body),
    target("member", messages::member),
    target("notice", image::notice),
    target("page", shard::page),
    target("preferences", state::preferences),
    target("proof", shard::proof),
    target("proposal", image::proposal),
    target("put_end", messages::put_end),
    target("record", messages::record),
    target("request", messages::request),
    target("response", messages::response),
];

const fn target(name: &'static str, run: fn(&[u8]) -> bool) -> Target {
    Target { name, run }
}

/// Runs the target called `name`.
///
/// # Panics
/// When there is no such target, and when the target panics.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let Some(target) = target else {
        panic!("no target {name}")
    };
    let _accepted = (target.run)(input);
}
