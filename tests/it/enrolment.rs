//! A grid that is set up by hand: each member makes its own key, the authority signs certificates
//! elsewhere, and members join and are revoked.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use tests::Outcome;
use tests::cluster::faketime;
use tests::port::free_address;
use tests::program::{command, run, wait_until};
use tests::skip::not_checked;

const HOSTS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);

/// A grid with a directory for each party: `authority`, `hN`, and one for each submitter.
struct Campus {
    dir: tempfile::TempDir,
    daemons: Vec<(String, Child)>,
}

impl Drop for Campus {
    fn drop(&mut self) {
        for (_, daemon) in &mut self.daemons {
            // The daemon may have ended already.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Campus {
    /// A grid with an authority and no members.
    fn empty() -> Result<Self> {
        let campus = Self {
            dir: tempfile::tempdir()?,
            daemons: Vec::new(),
        };
        campus.authority(&["init", "--name", "campus"])?.expect(0)?;
        ensure!(campus.grid().exists());
        Ok(campus)
    }

    /// A grid with an authority and [`HOSTS`] running hosts.
    fn open() -> Result<Self> {
        let mut campus = Self::empty()?;
        for number in 1..=HOSTS {
            campus.enrol_host(&format!("h{number}"))?;
        }
        for number in 1..=HOSTS {
            campus.start(&format!("h{number}"))?;
        }
        Ok(campus)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn grid(&self) -> PathBuf {
        self.path("authority").join("grid.toml")
    }

    /// Runs `ckpt grid COMMAND --dir AUTHORITY ...`.
    fn authority(&self, args: &[&str]) -> Result<Outcome> {
        let (first, rest) = args.split_first().context("no command")?;
        let mut asked = command(["grid", first, "--dir"])?;
        asked.arg(self.path("authority")).args(rest);
        run(&mut asked)
    }

    fn store(&self, args: &[&str]) -> Result<Command> {
        let mut program = Command::new(tests::ckpt()?);
        program.arg0("ckpt-store");
        program
            .args(args)
            .env_remove("CKPT_GRID")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(program)
    }

    fn enrol_host(&self, name: &str) -> Result<()> {
        let data = self.path(name);
        let made = self
            .store(&["init", "--name", name, "--data"])?
            .arg(&data)
            .output()?;
        let made = Outcome::from(made).expect(0)?;
        ensure!(made.stderr.contains("grid sign"), "{made}");
        let addr = free_address()?.to_string();
        let public = data.join("identity.pub");
        let certificate = data.join("identity.crt");
        let public = text(&public)?;
        let certificate = text(&certificate)?;
        let args = [
            "sign",
            "--role",
            "donor",
            "--pubkey",
            public,
            "--addr",
            &addr,
            "-o",
            certificate,
            // The hosts are not started yet.
            "--offline",
        ];
        self.authority(&args)?.expect(0)?;
        Ok(())
    }

    fn addr(&self, name: &str) -> Result<String> {
        let show = self.authority(&["show", "--json"])?.expect(0)?.json()?;
        let members = show["members"].as_array().context("members")?;
        let member = members.iter().find(|member| member["name"] == name);
        let addr = member.and_then(|member| member["addr"].as_str());
        Ok(addr.context("no address")?.to_owned())
    }

    fn start(&mut self, name: &str) -> Result<()> {
        let data = self.path(name);
        let addr = self.addr(name)?;
        let mut daemon = self.store(&[
            "serve",
            "--normal-priority",
            "--no-stand-back",
            "--reserve",
            "0",
            "--listen",
            &addr,
            "--grid",
        ])?;
        daemon.arg(self.grid()).arg("--data").arg(&data);
        self.start_program(name, daemon)
    }

    /// Starts a daemon with its log and its ready file in its data directory, and waits until it is ready.
    fn start_program(&mut self, name: &str, mut program: Command) -> Result<()> {
        let ready = self.path(name).join("ready");
        // An earlier start may have left the file.
        let _ = std::fs::remove_file(&ready);
        program
            .arg("--ready-file")
            .arg(&ready)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.path(name).join("log"))?);
        let mut daemon = program.spawn()?;
        let is_ready = wait_until("the daemon is ready", LIMIT, || {
            let ended = daemon.try_wait()?;
            ensure!(ended.is_none(), "{name} ended: {}", self.log(name)?);
            Ok(ready.exists())
        });
        self.daemons.push((name.to_owned(), daemon));
        is_ready
    }

    fn log(&self, host: &str) -> Result<String> {
        Ok(std::fs::read_to_string(self.path(host).join("log"))?)
    }

    /// Waits until the host's log has such a line.
    fn logged(&self, host: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
        wait_until("the host logs it", LIMIT, || {
            Ok(self.log(host)?.lines().any(&wanted))
        })
        .with_context(|| self.log(host).unwrap_or_default())
    }

    /// A `ckpt` command of the submitter `who`, in that submitter's home.
    fn ckpt(&self, who: &str, args: &[&str]) -> Result<Command> {
        let mut program = command(args)?;
        program
            .env("HOME", self.path(who))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env("CKPT_GRID", self.grid())
            .current_dir(self.dir.path());
        Ok(program)
    }

    fn as_user(&self, who: &str, args: &[&str]) -> Result<Outcome> {
        run(&mut self.ckpt(who, args)?)
    }

    fn key(&self, who: &str) -> PathBuf {
        self.path(who).join(".config/ckpt/owner.key")
    }

    fn sign_submitter(&self, who: &str, public: &Path, to: &Path, ttl: &str) -> Result<Outcome> {
        let public = text(public)?;
        let to = text(to)?;
        self.authority(&[
            "sign",
            "--role",
            "submitter",
            "--name",
            who,
            "--pubkey",
            public,
            "--ttl",
            ttl,
            "-o",
            to,
        ])
    }

    fn enrol_submitter(&self, who: &str) -> Result<()> {
        std::fs::create_dir_all(self.path(who))?;
        let made = self.as_user(who, &["init", "--name", who])?.expect(0)?;
        ensure!(
            String::from_utf8_lossy(&made.stdout).contains("owner.key.pub"),
            "{made}"
        );
        let key = self.key(who);
        let public = with(&key, ".pub");
        let to = key.with_extension("crt");
        self.sign_submitter(who, &public, &to, "90d")?.expect(0)?;
        Ok(())
    }

    fn save(&self, who: &str, job: &str) -> Result<Outcome> {
        self.as_user(who, &["save", "--job", job, "--", "echo", job])
    }

    fn restore(&self, who: &str, job: &str) -> Result<Outcome> {
        self.as_user(who, &["restore", "--job", job, "-o", "-"])
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("path")
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A registry, and hosts that join with a token and are found only through the registry.
impl Campus {
    fn registry(&mut self, addr: &str) -> Result<()> {
        let data = self.path("r1");
        let made = self.store(&["init", "--name", "r1", "--data"])?;
        let made = { made }.arg(&data).output()?;
        Outcome::from(made).expect(0)?;
        let public = data.join("identity.pub");
        let certificate = data.join("identity.crt");
        let public = text(&public)?;
        let certificate = text(&certificate)?;
        let sign = [
            "sign", "--role", "registry", "--pubkey", public, "--addr", addr, "-o",
        ];
        self.authority(&[&sign[..], &[certificate]].concat())?
            .expect(0)?;
        let enrol = data.join("enrol.crt");
        self.authority(&["delegate", "r1", "-o", text(&enrol)?])?
            .expect(0)?;
        self.start_registry(addr)
    }

    fn start_registry(&mut self, addr: &str) -> Result<()> {
        let data = self.path("r1");
        let mut registry = self.store(&["registry", "--listen", addr, "--grid"])?;
        registry.arg(self.grid()).arg("--data").arg(&data);
        self.start_program("r1", registry)
    }

    fn stop(&mut self, name: &str) -> Result<()> {
        let at = self.daemons.iter().position(|(running, _)| running == name);
        let (_, mut process) = self.daemons.remove(at.context("not running")?);
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    fn join(&self, name: &str, token: &str) -> Result<Outcome> {
        let mut join = self.store(&["join", token, "--name", name, "--data"])?;
        Ok(join.arg(self.path(name)).output()?.into())
    }

    /// Starts a host that joined with a token. The host uses the grid file that it got, and a port that the
    /// kernel chooses.
    fn start_joined(&mut self, name: &str) -> Result<()> {
        let data = self.path(name);
        let mut daemon = self.store(&[
            "serve",
            "--normal-priority",
            "--no-stand-back",
            "--reserve",
            "0",
            "--site",
            "annex",
            "--listen",
            "127.0.0.1:0",
            "--grid",
        ])?;
        daemon.arg(data.join("grid.toml")).arg("--data").arg(&data);
        self.start_program(name, daemon)
    }

    fn invite(&self) -> Result<String> {
        let made = self.authority(&["invite", "--registry", "r1", "--json"])?;
        let made = made.expect(0)?.json()?;
        Ok(made["tokens"][0].as_str().context("token")?.to_owned())
    }

    /// Names of the hosts that answer the submitter `who`.
    fn hosts_up(&self, who: &str) -> Result<Vec<String>> {
        let asked = self.as_user(who, &["hosts", "--json"])?;
        // The exit status is 5 while no host is up.
        ensure!(matches!(asked.code, Some(0 | 5)), "{asked}");
        let hosts = asked.json()?;
        let hosts = hosts["hosts"].as_array().context("hosts")?.clone();
        let up = hosts.iter().filter(|host| host["up"] == true);
        Ok(up
            .filter_map(|host| Some(host["name"].as_str()?.to_owned()))
            .collect())
    }
}

/// A join with an invalid token gets the same answer for a name that exists and for one that does not.
fn names_are_not_shown_without_a_token(campus: &Campus, token: &str) -> Result<()> {
    let (unsigned, last) = token.split_at(token.len() - 1);
    let unsigned = format!("{unsigned}{}", if last == "0" { 1 } else { 0 });
    let mut answers = Vec::new();
    for name in ["j1", "nobody"] {
        let mut join = campus.store(&["join", &unsigned, "--name", name, "--data"])?;
        let refused: Outcome = join.arg(campus.path("guess")).output()?.into();
        answers.push(refused.expect(1)?.stderr);
    }
    ensure!(
        answers[0] == answers[1] && answers[0].contains("refused"),
        "{answers:?}"
    );
    Ok(())
}

/// Five machines join, each with a token of its own, and start.
fn five_machines_join(campus: &mut Campus) -> Result<()> {
    for number in 1..=5 {
        let name = format!("j{number}");
        let token = campus.invite()?;
        let joined = campus.join(&name, &token)?.expect(0)?;
        ensure!(
            !joined.stderr.contains(&token),
            "a token is not printed: {joined}"
        );
        // A second machine can't join with the same token.
        let again = campus.join(&format!("x{number}"), &token)?.expect(1)?;
        ensure!(again.stderr.contains("used already"), "{again}");
        campus.start_joined(&name)?;
    }
    Ok(())
}

/// Joins are refused with a wrong, forged or expired token, and in a data directory that belongs to a grid.
fn wrong_joins_are_refused(campus: &Campus) -> Result<()> {
    let token = campus.invite()?;
    let forged = token.replace("/127.0.0.1", "/127.0.0.2");
    for (wrong, why) in [
        ("nonsense", "not a join token"),
        (forged.as_str(), "registry 127.0.0.2"),
    ] {
        let refused = campus.join("y", wrong)?.expect(1)?;
        ensure!(refused.stderr.contains(why), "{refused}");
    }
    names_are_not_shown_without_a_token(campus, &token)?;
    let taken = campus.join("j1", &token)?.expect(1)?;
    ensure!(taken.stderr.contains("belongs to a grid"), "{taken}");
    let late = campus.authority(&["invite", "--registry", "r1", "--ttl", "1s", "--json"])?;
    let late = late.expect(0)?.json()?;
    let expires = late["expires"].as_u64().context("expires")?;
    wait_until("the token has expired", LIMIT, || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(now.as_secs() > expires)
    })?;
    let late = campus.join("z", late["tokens"][0].as_str().context("token")?)?;
    ensure!(
        late.code == Some(1) && late.stderr.contains("expired"),
        "{late}"
    );
    Ok(())
}

/// While the registry is down, the known hosts serve. A restarted registry knows no host until the hosts
/// announce themselves again.
fn a_restarted_registry_learns_of_all_hosts(campus: &mut Campus, addr: &str) -> Result<()> {
    campus.stop("r1")?;
    let without = campus.hosts_up("ada")?;
    ensure!(
        without.len() == 5,
        "with no registry, those that are known: {without:?}"
    );
    ensure!(campus.restore("ada", "42")?.expect(0)?.stdout == b"42\n");
    campus.start_registry(addr)?;
    campus.enrol_submitter("bob")?;
    wait_until("all are known again", LIMIT, || {
        Ok(campus.hosts_up("bob")?.len() == 5)
    })
}

#[test]
fn machines_join_with_a_token_and_are_found_through_the_registry() -> Result<()> {
    let mut campus = Campus::empty()?;
    let addr = free_address()?.to_string();
    campus.registry(&addr)?;
    campus.enrol_submitter("ada")?;
    five_machines_join(&mut campus)?;
    wait_until("all are announced", LIMIT, || {
        Ok(campus.hosts_up("ada")?.len() == 5)
    })?;
    campus.save("ada", "42")?.expect(0)?;
    ensure!(campus.restore("ada", "42")?.expect(0)?.stdout == b"42\n");
    wrong_joins_are_refused(&campus)?;
    a_restarted_registry_learns_of_all_hosts(&mut campus, &addr)?;

    // Certificates that the registry's key signed are not accepted any more once that key is revoked.
    campus.authority(&["revoke", "r1"])?.expect(0)?;
    let hosts = campus
        .as_user("ada", &["hosts", "--json"])?
        .expect(5)?
        .json()?;
    ensure!(
        hosts["hosts"]
            .as_array()
            .is_some_and(|hosts| hosts.iter().all(|host| host["up"] == false)),
        "{hosts}"
    );
    Ok(())
}

#[test]
fn a_registry_may_sign_donors_and_nobody_else() -> Result<()> {
    use codec::seal::OwnerSecret;
    use protocol::identity::{
        Authority, Enroller, Identity, Role, Validity, certificate_to_pem, write_key,
    };
    let campus = Campus::open()?;
    // An attacker has the registry's key, and signs a certificate of a submitter with it.
    let authority = campus.path("authority");
    let secret = protocol::identity::read_key(&authority.join("authority.key"))?;
    let pem = std::fs::read_to_string(authority.join("authority.crt"))?;
    let authority = Authority::load(secret, protocol::identity::certificate_from_pem(&pem)?);
    let validity = Validity {
        from: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        lasting: Duration::from_secs(3600),
    };
    let registry = OwnerSecret::new([9; 32]);
    let enrol = authority.delegate("r1", registry.id(), &[Role::Donor], validity)?;
    // `Enroller` signs only donors, so the attacker signs as an authority with the same key.
    let rogue = Authority::load(registry.clone(), enrol.clone());
    let key = OwnerSecret::new([8; 32]);
    for (role, code) in [(Role::Submitter, 6), (Role::Admin, 6)] {
        let certificate = rogue.sign(&[role, Role::Submitter], "mallory", key.id(), validity)?;
        let dir = campus.path(role.name());
        std::fs::create_dir_all(&dir)?;
        write_key(&dir.join("key"), &key)?;
        let chain = certificate_to_pem(&certificate) + &certificate_to_pem(&enrol);
        std::fs::write(dir.join("key.crt"), chain)?;
        let mut save = campus.ckpt("mallory", &["save", "--job", "1", "--", "echo", "1"])?;
        save.env("CKPT_KEY_FILE", dir.join("key"));
        save.env("CKPT_CERT_FILE", dir.join("key.crt"));
        run(&mut save)?.expect(code)?;
    }
    let donor = Enroller::new(registry, enrol).sign(Role::Donor, "h9", key.id(), validity)?;
    Identity::new(key, donor)?;
    Ok(())
}

#[test]
fn members_are_enrolled_by_hand_and_revoked() -> Result<()> {
    let campus = Campus::open()?;
    std::fs::create_dir_all(campus.path("ada"))?;
    let unsigned = campus.save("ada", "42")?.expect(6)?;
    ensure!(unsigned.stderr.contains("ckpt init"), "{unsigned}");
    campus.enrol_submitter("ada")?;
    campus.enrol_submitter("bob")?;
    let saved = campus.save("ada", "42")?.expect(0)?;
    ensure!(
        String::from_utf8_lossy(&saved.stdout).contains("h1"),
        "{saved}"
    );

    // Another submitter does not see the job, and can use its name for a job of their own.
    campus.restore("bob", "42")?.expect(4)?;
    campus.save("bob", "42")?.expect(0)?;
    let restored = campus.restore("ada", "42")?.expect(0)?;
    ensure!(restored.stdout == b"42\n", "{restored}");

    campus.authority(&["revoke", "ada"])?.expect(0)?;
    campus.authority(&["revoke", "nobody"])?.expect(4)?;
    // The daemons notice the changed grid file without a restart.
    wait_until("a revoked member is refused", LIMIT, || {
        Ok(campus.restore("ada", "42")?.code == Some(6))
    })?;
    let refused = campus.save("ada", "42")?.expect(6)?;
    ensure!(refused.stderr.contains("revoked"), "{refused}");
    let log = campus.log("h1")?;
    let named = |line: &str| {
        line.contains("refused") && line.contains("name=\"ada\"") && line.contains("revoked")
    };
    ensure!(log.lines().any(named), "{log}");
    campus.restore("bob", "42")?.expect(0)?;

    let show = campus.authority(&["show", "--json"])?.expect(0)?.json()?;
    let members = show["members"].as_array().context("members")?;
    let state = |name: &str| {
        members
            .iter()
            .find(|member| member["name"] == name)
            .map(|member| member["state"].clone())
    };
    ensure!(
        state("ada") == Some("revoked".into()) && state("bob") == Some("valid".into()),
        "{show}"
    );
    // The authority does not sign a revoked key again.
    let key = campus.key("ada");
    let certificate = key.with_extension("crt");
    let again = campus
        .sign_submitter("ada", &with(&key, ".pub"), &certificate, "1d")?
        .expect(2)?;
    ensure!(again.stderr.contains("revoked"), "{again}");
    Ok(())
}

#[test]
fn a_revoked_donor_is_not_used() -> Result<()> {
    let campus = Campus::open()?;
    campus.enrol_submitter("ada")?;
    campus.save("ada", "42")?.expect(0)?;
    campus.authority(&["revoke", "h3"])?.expect(0)?;
    let hosts = campus
        .as_user("ada", &["hosts", "--json"])?
        .expect(0)?
        .json()?;
    let named = hosts["hosts"].to_string();
    ensure!(
        !named.contains("\"h3\"") && named.contains("\"h4\""),
        "{named}"
    );
    let restored = campus.restore("ada", "42")?.expect(0)?;
    ensure!(restored.stdout == b"42\n", "{restored}");
    // Four hosts are left for five shards.
    campus
        .as_user(
            "ada",
            &["save", "--job", "42", "--parity", "2", "--", "echo", "43"],
        )?
        .expect(5)?;
    campus
        .as_user(
            "ada",
            &["save", "--job", "42", "--parity", "1", "--", "echo", "43"],
        )?
        .expect(0)?;
    Ok(())
}

/// A client whose clock is half an hour behind takes its certificate for valid. Hosts refuse it by their
/// own clocks.
fn hosts_refuse_an_expired_client_whose_clock_is_slow(campus: &Campus) -> Result<()> {
    let Some(library) = faketime() else {
        return not_checked(
            "a certificate that has ended, by the host's clock",
            "no libfaketime",
        );
    };
    let mut late = campus.ckpt("ada", &["restore", "--job", "42", "-o", "-"])?;
    late.env("LD_PRELOAD", library)
        .env("FAKETIME", "-1800")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let refused = run(&mut late)?.expect(6)?;
    let refusal = "does not accept our certificate: expired";
    ensure!(refused.stderr.contains(refusal), "{refused}");
    let named =
        |line: &str| line.contains("refused") && line.contains("ada") && line.contains("expired");
    campus.logged("h2", named)
}

#[test]
fn an_expired_certificate_is_refused() -> Result<()> {
    let campus = Campus::open()?;
    campus.enrol_submitter("ada")?;
    campus.save("ada", "42")?.expect(0)?;
    let key = campus.key("ada");
    let certificate = key.with_extension("crt");
    campus
        .sign_submitter("ada", &with(&key, ".pub"), &certificate, "1s")?
        .expect(0)?;
    wait_until("the certificate has ended", LIMIT, || {
        Ok(campus.restore("ada", "42")?.code == Some(6))
    })?;
    // The client refuses by itself, before it asks a host.
    let refused = campus.save("ada", "42")?.expect(6)?;
    let is_own = refused.stderr.contains("your certificate");
    ensure!(is_own && refused.stderr.contains("expired"), "{refused}");
    hosts_refuse_an_expired_client_whose_clock_is_slow(&campus)?;
    campus
        .sign_submitter("ada", &with(&key, ".pub"), &certificate, "1d")?
        .expect(0)?;
    campus.restore("ada", "42")?.expect(0)?;
    Ok(())
}

#[test]
fn a_donor_can_not_save() -> Result<()> {
    let campus = Campus::open()?;
    // A donor uses its key and certificate to save.
    let data = campus.path("h1");
    let mut save = campus.ckpt("h1", &["save", "--job", "1", "--", "echo", "1"])?;
    save.env("CKPT_KEY_FILE", data.join("identity.key"));
    save.env("CKPT_CERT_FILE", data.join("identity.crt"));
    let refused = run(&mut save)?.expect(6)?;
    ensure!(refused.stderr.contains("submitter"), "{refused}");
    Ok(())
}

#[test]
fn keys_are_replaced_and_what_the_old_one_saved_is_restored() -> Result<()> {
    let mut campus = Campus::open()?;
    campus.enrol_submitter("ada")?;
    campus.save("ada", "oldest")?.expect(0)?;
    campus.save("ada", "old")?.expect(0)?;
    let key = campus.key("ada");
    let before = std::fs::read(&key)?;

    let early = campus
        .as_user("ada", &["key", "rotate", "--cert", "none.crt"])?
        .expect(6)?;
    ensure!(early.stderr.contains("without --cert"), "{early}");
    campus.as_user("ada", &["key", "rotate"])?.expect(0)?;
    let public = std::fs::read_to_string(with(&key, ".next.pub"))?;
    ensure!(public.contains("ada-2"), "{public}");
    // The old key stays in use until the new one has a certificate.
    ensure!(std::fs::read(&key)? == before);
    campus.restore("ada", "old")?.expect(0)?;
    let certificate = campus.path("next.crt");
    campus
        .sign_submitter("ada-2", &with(&key, ".next.pub"), &certificate, "1d")?
        .expect(0)?;
    let other = key.with_extension("crt");
    campus
        .as_user("ada", &["key", "rotate", "--cert", text(&other)?])?
        .expect(6)?;
    campus
        .as_user("ada", &["key", "rotate", "--cert", text(&certificate)?])?
        .expect(0)?;
    ensure!(std::fs::read(&key)? != before);

    campus.save("ada", "new")?.expect(0)?;
    ensure!(campus.restore("ada", "new")?.expect(0)?.stdout == b"new\n");
    ensure!(campus.restore("ada", "old")?.expect(0)?.stdout == b"old\n");
    campus.restore("ada", "never")?.expect(4)?;
    let mut missing = campus.ckpt(
        "ada",
        &["restore", "--job", "never", "--if-exists", "-o", "-"],
    )?;
    run(&mut missing)?.expect(0)?;
    checkpoints_of_a_retired_key_are_seen_and_removed(&campus)?;
    checkpoints_of_a_retired_key_are_found_in_silence(&mut campus)
}

/// So many hosts are silent that they may hold a version of the present key that nobody knows of.
fn checkpoints_of_a_retired_key_are_found_in_silence(campus: &mut Campus) -> Result<()> {
    for (_, daemon) in campus.daemons.iter_mut().take(2) {
        daemon.kill()?;
        daemon.wait()?;
    }
    let said = |job| {
        [
            "restore",
            "--if-exists",
            "--data",
            "2",
            "--job",
            job,
            "-o",
            "-",
        ]
    };
    let found = campus.as_user("ada", &said("oldest"))?.expect(0)?;
    ensure!(found.stdout == b"oldest\n", "{found}");
    campus.as_user("ada", &said("never"))?.expect(5)?;
    Ok(())
}

fn checkpoints_of_a_retired_key_are_seen_and_removed(campus: &Campus) -> Result<()> {
    let json = |args: &[&str]| -> Result<serde_json::Value> {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        campus.as_user("ada", &args)?.expect(0)?.json()
    };
    let jobs = || -> Result<Vec<(String, bool)>> {
        let listed = json(&["list"])?;
        let all = listed["checkpoints"].as_array().context("checkpoints")?;
        let one = |one: &serde_json::Value| {
            Some((one["job"].as_str()?.to_owned(), one["retired"].as_bool()?))
        };
        Ok(all.iter().filter_map(one).collect())
    };
    let all = |old_is_retired| {
        [("new", false), ("old", old_is_retired), ("oldest", true)]
            .map(|(job, is_retired)| (job.to_owned(), is_retired))
    };
    ensure!(jobs()? == all(true));
    let shown = json(&["show", "--job", "old"])?;
    ensure!(shown["retired"] == true, "{shown}");
    let verified = json(&["verify"])?;
    ensure!(
        verified["checkpoints"].as_array().map(Vec::len) == Some(3),
        "{verified}"
    );
    json(&["verify", "--job", "old"])?;
    json(&["gc", "--dry-run"])?;
    // Certificates of this test end soon, so that it finds something.
    let health = campus.as_user("ada", &["--json", "health"])?.json()?;
    let jobs_there = health["jobs"].as_array().context("jobs")?;
    ensure!(jobs_there.iter().any(|one| one["job"] == "old"), "{health}");
    // Both keys saved this job: versions of the present key count as newer.
    campus.save("ada", "old")?.expect(0)?;
    let removed = json(&["forget", "--job", "old", "--keep", "1"])?;
    ensure!(removed["removed"] == serde_json::json!([1]), "{removed}");
    ensure!(jobs()? == all(false));
    campus.restore("ada", "old")?.expect(0)?;
    campus
        .as_user("ada", &["forget", "--job", "old", "--all"])?
        .expect(0)?;
    campus
        .as_user("ada", &["forget", "--job", "old", "--all"])?
        .expect(4)?;
    Ok(())
}

/// A client that knows the hosts from earlier does not wait for a registry that does not answer.
#[test]
fn a_dead_registry_does_not_delay_a_client_that_knows_the_hosts() -> Result<()> {
    let mut campus = Campus::open()?;
    campus.registry(&free_address()?.to_string())?;
    campus.enrol_submitter("ada")?;
    campus.save("ada", "42")?.expect(0)?;
    campus.stop("r1")?;
    let began = std::time::Instant::now();
    campus.as_user("ada", &["list"])?.expect(0)?;
    let took = began.elapsed();
    ensure!(took < Duration::from_millis(2500), "{took:?}");
    let said = campus.as_user("ada", &["-v", "list"])?.expect(0)?;
    ensure!(said.stderr.contains("left out"), "{said}");
    Ok(())
}

#[test]
fn a_key_can_come_from_a_command_and_be_exported() -> Result<()> {
    let campus = Campus::open()?;
    campus.enrol_submitter("ada")?;
    campus.save("ada", "42")?.expect(0)?;
    let whole = campus.path("whole");
    campus
        .as_user("ada", &["key", "export", "-o", text(&whole)?])?
        .expect(0)?;
    campus
        .as_user("ada", &["key", "export", "-o", text(&whole)?])?
        .expect(8)?;
    ensure!(whole.metadata()?.permissions().mode() & 0o777 == 0o600);
    let key = campus.key("ada");
    let piped = campus
        .as_user("ada", &["key", "export", "-o", "-"])?
        .expect(0)?;
    ensure!(piped.stdout == std::fs::read(&key)?, "{piped}");
    let copy = campus.path("copy");
    std::fs::write(&copy, &piped.stdout)?;

    std::fs::remove_file(&key)?;
    campus.restore("ada", "42")?.expect(6)?;
    let mut restore = campus.ckpt("ada", &["restore", "--job", "42", "-o", "-"])?;
    restore.env("CKPT_KEY_COMMAND", format!("cat {}", copy.display()));
    ensure!(run(&mut restore)?.expect(0)?.stdout == b"42\n");
    let mut restore = campus.ckpt("ada", &["restore", "--job", "42", "-o", "-"])?;
    restore.env("CKPT_KEY_COMMAND", "false");
    run(&mut restore)?.expect(6)?;
    // `ckpt` does not use a key file that other users can read.
    std::fs::copy(&copy, &key)?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644))?;
    let open = campus.restore("ada", "42")?.expect(6)?;
    ensure!(open.stderr.contains("chmod 600"), "{open}");
    Ok(())
}
