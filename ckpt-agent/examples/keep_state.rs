//! Keeps a program's state on a grid: `keep_state GRID_FILE JOB`.

use std::error::Error;
use std::io::Cursor;

use ckpt_agent::client::blocking::Client;
use ckpt_agent::client::{Save, SaveOptions, Settings, Which};

/// Saves a state and reads the end of it back.
pub fn keep(grid: &str, job: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let client = Client::connect(&Settings::of_grid(grid))?;
    let job = job.parse()?;
    let options = SaveOptions {
        keep: 3,
        ..SaveOptions::default()
    };
    client.save(Save::of_reader(&job, Cursor::new(b"step 900")).options(options))?;
    let image = client.open(&job, Which::Newest)?;
    let mut number = vec![0; 3];
    image.read_at(image.file(None)?, 5, &mut number)?;
    client.close();
    Ok(number)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let grid = args.next().ok_or("no grid file")?;
    let job = args.next().ok_or("no job")?;
    keep(&grid, &job).map(|_| ())
}
