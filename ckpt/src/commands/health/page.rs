//! `ckpt dashboard`: the report of `ckpt health` as a page.

use std::io::{self, Write as _};

use web::board::Board;
use web::{Server, Settings, StartError, Token};

use crate::commands::args::DashboardArgs;
use crate::commands::args::options::Global;
use crate::commands::connect::named_grid;
use crate::commands::{Answer, done, health, render};
use ckpt_agent::cancel::Cancel;
use ckpt_agent::report::{ExitStatus, Failure};

/// Serves the page until it is cancelled.
pub(crate) async fn run(
    global: &Global,
    args: &DashboardArgs,
    mut cancel: Cancel,
) -> Result<Answer, Failure> {
    let usage = |what: String| Failure::new(ExitStatus::Usage, what);
    let token = args.token_file.as_deref().map(Token::read).transpose();
    let token =
        token.map_err(|cause| usage(cause.to_string()).next("openssl rand -hex 32 > FILE"))?;
    let (_, grid) = named_grid(global)?;
    let board = Board::new(format!("grid {}", grid.name));
    let settings = Settings {
        listen: args.listen,
        token,
    };
    let server = Server::start(&settings, board.pages()).map_err(|cause| match cause {
        StartError::NoToken(addr) => usage(format!(
            "--listen {addr}: other machines can reach this address, so a token is required"
        ))
        .next(format!(
            "--token-file FILE; or --listen 127.0.0.1:{}",
            addr.port()
        )),
        StartError::Bind { .. } => Failure::new(ExitStatus::LocalIo, cause.to_string())
            .next("--listen ADDRESS:PORT, with another port"),
    })?;
    let _ = writeln!(
        io::stderr(),
        "ckpt: http://{}/ shows the health of your checkpoints, until ckpt is interrupted",
        server.local_addr()
    );
    let mut is_first = true;
    loop {
        tokio::select! {
            found = health::find(global, &args.health) => match found {
                Ok(health) => board.show(health),
                // What is wrong from the start stays wrong.
                Err(failure) if is_first => return Err(failure),
                Err(failure) => board.keep(failure.message),
            },
            () = cancel.cancelled() => break,
        }
        is_first = false;
        tokio::select! {
            () = tokio::time::sleep(args.period.every()) => {}
            () = cancel.cancelled() => break,
        }
    }
    server.stop().await;
    done(render::Text(Vec::new()))
}
