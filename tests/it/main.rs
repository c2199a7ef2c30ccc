//! End-to-end tests with the real program, real daemons, real sockets and real kills.

mod absent;
mod at_hand;
mod away;
mod bad_input;
mod chain;
mod chaos;
mod clocks;
mod completion;
mod condor;
mod crash;
mod deaths;
mod detached;
mod docs;
mod doctor;
mod enrolment;
mod etcd;
mod everyday;
mod farewell;
mod faults;
mod fence_model;
mod fencing;
mod followed;
mod health;
mod heard;
mod incident;
mod job_script;
mod jobkeys;
mod jobs;
mod junk;
mod kept;
mod labels;
mod liars;
mod library;
mod lifetime;
mod lists;
mod local_grid;
mod lying_files;
mod map;
mod members_model;
mod named_jobs;
mod names;
mod owner;
mod page_machines;
mod pages;
mod peers;
mod placement;
mod pool_past;
mod rank;
mod ratio;
mod reached;
mod reading;
mod readme_grid;
mod recipes;
mod reflinks;
mod repair;
mod restoring;
mod resume;
mod retention_model;
mod run;
mod run_as_they_are;
mod run_kills;
mod run_signals;
mod runs;
mod saving;
mod seen;
mod setup;
mod signals;
mod silent_members;
mod slips;
mod steps;
mod stolen_keys;
mod study;
mod trust;
mod unheard;
mod upgrade;
mod versions;
mod watching;
mod who_is_who;
mod whole;
mod withheld;

use anyhow::Result;
use tests::Grid;

/// Writes `bytes` to a file, saves it as a checkpoint of `job`, and returns the file's path.
fn save_file(grid: &Grid, job: &str, bytes: &[u8]) -> Result<std::path::PathBuf> {
    let file = grid.path(&format!("{job}.img"));
    std::fs::write(&file, bytes)?;
    grid.run([
        "save".as_ref(),
        "--job".as_ref(),
        job.as_ref(),
        file.as_os_str(),
    ])?
    .expect(0)?;
    Ok(file)
}

/// Restores the newest version of a job and returns its bytes.
fn restore_bytes(grid: &Grid, job: &str) -> Result<Vec<u8>> {
    Ok(grid
        .run(["restore", "--job", job, "-o", "-"])?
        .expect(0)?
        .stdout)
}
