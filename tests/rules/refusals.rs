//! A refusal says what to try next: a `Failure` gets its next step where it is made, or stands in the list below.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, Expr, ExprCall, ExprMethodCall, Local, Pat, ReturnType, Signature, Visibility,
};

use crate::tree::{self, Source};

/// Crates that make failures, and the commands of the daemon.
const CRATES: [&str; 5] = [
    "ckpt",
    "ckpt-agent",
    "ckpt-store/src/cli",
    "condor",
    "runner",
];

/// Functions that make a failure without a next step, after the reason, with how often they do so.
const WITHOUT: [(&str, &[(&str, usize)]); 5] = [
    (
        "the user has interrupted the command",
        &[
            ("ckpt-agent/src/agent/keep/verify.rs verify", 1),
            ("ckpt-agent/src/agent/read/restore.rs interrupted", 1),
            ("condor/src/cleanup.rs forget", 1),
            ("condor/src/transfer.rs again", 1),
            ("runner/src/begin.rs make", 1),
            ("runner/src/signals.rs failure", 1),
            ("runner/src/watching.rs save", 1),
        ],
    ),
    (
        "the system gives no threads, sockets, signals or random numbers",
        &[
            ("ckpt-agent/src/agent/handle.rs new", 1),
            ("ckpt-agent/src/agent/handle.rs random", 1),
            ("ckpt-agent/src/agent/report/census.rs grid_health", 1),
            ("ckpt-agent/src/client/blocking.rs connect", 1),
            ("ckpt/src/commands/grid/authority.rs init", 1),
            ("ckpt/src/commands/grid/invite.rs tokens", 1),
            ("ckpt/src/commands/mod.rs runtime", 1),
            ("condor/src/lib.rs with_runtime", 1),
            ("runner/src/saver.rs new", 1),
            ("runner/src/signals.rs new", 1),
        ],
    ),
    (
        "a fault of the program: of a task, of bytes that it made or of an entry that it wrote",
        &[
            ("ckpt-agent/src/agent/keep/job_keys.rs make_void", 1),
            ("ckpt-agent/src/agent/read/content.rs blocking", 1),
            ("ckpt-agent/src/agent/report/list.rs show", 2),
            ("ckpt-agent/src/agent/report/pool.rs pool", 1),
            ("ckpt-agent/src/agent/save/follow.rs fence", 1),
            ("ckpt-agent/src/agent/save/run/mod.rs conclude", 1),
            ("ckpt-agent/src/agent/save/run/mod.rs failure", 5),
            ("ckpt/src/commands/completion.rs script", 1),
            ("ckpt/src/commands/grid/roll.rs show", 1),
            ("ckpt/src/commands/key/job.rs issue", 5),
            ("ckpt/src/commands/key/travel.rs gathered", 1),
            ("ckpt/src/commands/run/on.rs issue", 2),
            ("ckpt/src/commands/run/on.rs job_key", 1),
            ("ckpt/src/commands/run/on.rs options", 1),
            ("ckpt/src/commands/run/on.rs sealed_key", 1),
            ("ckpt/src/commands/run/on.rs text_of", 2),
            ("ckpt/src/commands/save/mod.rs detached_save", 1),
            ("ckpt/src/commands/spool/mod.rs save_entry", 1),
            ("ckpt-store/src/cli/guest.rs report_for", 1),
            ("ckpt-store/src/cli/leaving.rs drain", 1),
            ("runner/src/begin.rs put_in_place", 1),
        ],
    ),
    (
        "notes of earlier runs can't be read, and the message has the path and the system's reason",
        &[
            ("ckpt/src/commands/health/mod.rs work_here", 1),
            ("ckpt/src/commands/run/jobs.rs run", 1),
            ("ckpt/src/commands/run/past.rs ledger", 1),
        ],
    ),
    (
        "the demonstration has no input; a copy for another file has the step in its message",
        &[
            ("ckpt/src/commands/demo/eviction.rs run", 1),
            ("ckpt/src/commands/demo/eviction.rs run_until_evicted", 1),
            ("ckpt/src/commands/demo/eviction.rs two_holders", 1),
            ("ckpt/src/commands/demo/machine.rs look_again", 2),
            ("ckpt/src/commands/demo/machine.rs report_in", 1),
            ("ckpt/src/commands/demo/path.rs run", 1),
            ("ckpt/src/commands/demo/path.rs save_request", 1),
            ("condor/src/transfer.rs download", 1),
        ],
    ),
];

/// The names of functions that make a failure to which their callers add the next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Makers {
    /// Those that other files may call, with the crate, or with none if every crate may.
    shared: BTreeSet<(String, String)>,
    /// Those of one file, with its path.
    own: BTreeSet<(String, String)>,
}

/// Reads one file, function by function.
#[derive(Debug)]
struct Reader<'a> {
    file: &'a str,
    makers: &'a Makers,
    found: Makers,
    /// The function that is read.
    function: String,
    /// Closures of the function, each with whether it makes a failure without a next step.
    closures: BTreeMap<String, bool>,
    /// Functions that the file defines.
    defined: BTreeSet<String>,
    /// Variables of the function that get a next step.
    stepped: BTreeSet<String>,
    /// The function of each failure that is made without a next step.
    bare: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(file: &'a str, makers: &'a Makers) -> Self {
        Self {
            file,
            makers,
            found: Makers::default(),
            function: String::new(),
            closures: BTreeMap::new(),
            defined: BTreeSet::new(),
            stepped: BTreeSet::new(),
            bare: Vec::new(),
        }
    }

    /// Whether the expression names a function that makes a failure without a next step.
    fn is_maker(&self, named: &Expr) -> bool {
        let Expr::Path(path) = named else {
            return false;
        };
        let mut parts = path.path.segments.iter().rev();
        let name = parts.next().map(|part| part.ident.to_string());
        let name = name.unwrap_or_default();
        let of = parts.next().map(|part| part.ident.to_string());
        let is_in_report = self.file.ends_with("/report.rs");
        match of.as_deref() {
            Some("Failure") => name == "new",
            Some("Self") => name == "new" && is_in_report,
            _ => self.is_maker_named(name),
        }
    }

    fn is_maker_named(&self, name: String) -> bool {
        if let Some(is_maker) = self.closures.get(&name) {
            return *is_maker;
        }
        if self.defined.contains(&name) {
            return self.makers.own.contains(&(self.file.to_owned(), name));
        }
        let of_all = (String::new(), name.clone());
        let shared = &self.makers.shared;
        shared.contains(&of_all) || shared.contains(&(self.crate_name(), name))
    }

    fn crate_name(&self) -> String {
        let name = self.file.split('/').next();
        name.unwrap_or_default().to_owned()
    }

    /// Reads an expression that makes a failure and then gets a next step, or any other.
    fn read_stepped(&mut self, made: &'a Expr) {
        match made {
            Expr::Call(call) if self.is_maker(&call.func) => {
                for argument in &call.args {
                    self.visit_expr(argument);
                }
            }
            other => self.visit_expr(other),
        }
    }

    fn read_function(&mut self, seen_by: &Visibility, head: &'a Signature, body: &'a Block) {
        let name = head.ident.to_string();
        let outer = std::mem::replace(&mut self.function, name.clone());
        let closures = std::mem::take(&mut self.closures);
        let mut steps = Steps::default();
        steps.visit_block(body);
        let stepped = std::mem::replace(&mut self.stepped, steps.0);
        let before = self.bare.len();
        visit::visit_block(self, body);
        if head.receiver().is_none() && returns_failure(head) && self.bare.len() > before {
            self.bare.truncate(before);
            match seen_by {
                Visibility::Public(_) => self.found.shared.insert((String::new(), name.clone())),
                Visibility::Restricted(_) => {
                    self.found.shared.insert((self.crate_name(), name.clone()))
                }
                Visibility::Inherited => false,
            };
            self.found.own.insert((self.file.to_owned(), name));
        }
        self.function = outer;
        self.closures = closures;
        self.stepped = stepped;
    }
}

impl<'a> Visit<'a> for Reader<'a> {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        self.read_function(&function.vis, &function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        self.read_function(&Visibility::Inherited, &function.sig, &function.block);
    }

    fn visit_local(&mut self, local: &'a Local) {
        let (Pat::Ident(name), Some(init)) = (&local.pat, &local.init) else {
            return visit::visit_local(self, local);
        };
        let name = name.ident.to_string();
        if let Expr::Closure(closure) = &*init.expr {
            let before = self.bare.len();
            self.visit_expr(&closure.body);
            self.closures.insert(name, self.bare.len() > before);
            self.bare.truncate(before);
        } else if self.stepped.contains(&name) {
            self.read_stepped(&init.expr);
        } else {
            visit::visit_local(self, local);
            // No function of this name is meant after it.
            self.closures.insert(name, false);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if is_step(call) {
            self.read_stepped(&call.receiver);
        } else {
            self.visit_expr(&call.receiver);
        }
        for argument in &call.args {
            if self.is_maker(argument) {
                self.bare.push(self.function.clone());
            }
            self.visit_expr(argument);
        }
    }

    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        if self.is_maker(&call.func) {
            self.bare.push(self.function.clone());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let text = call.tokens.to_string();
        // The daemon's commands refuse with a `Refusal`, which has a next step.
        let refuses = call.path.is_ident("bail") || call.path.is_ident("ensure");
        if refuses && !text.contains("Refusal") {
            self.bare.push(self.function.clone());
        }
        let made = text.matches("Failure :: new").count();
        let stepped = text.matches(". next (").count();
        let bare = made.saturating_sub(stepped);
        self.bare.extend(vec![self.function.clone(); bare]);
    }
}

/// Variables that get a next step: `failure.next("...")`, `failure.next = Some(...)`.
#[derive(Debug, Default)]
struct Steps(BTreeSet<String>);

impl Steps {
    fn add(&mut self, variable: &Expr) {
        if let Expr::Path(path) = variable
            && let Some(name) = path.path.get_ident()
        {
            self.0.insert(name.to_string());
        }
    }
}

impl<'a> Visit<'a> for Steps {
    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if is_step(call) {
            self.add(&call.receiver);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_assign(&mut self, assigned: &'a syn::ExprAssign) {
        if let Expr::Field(field) = &*assigned.left
            && matches!(&field.member, syn::Member::Named(name) if name == "next")
        {
            self.add(&field.base);
        }
        visit::visit_expr_assign(self, assigned);
    }
}

/// Whether the call adds a next step.
fn is_step(call: &ExprMethodCall) -> bool {
    (call.method == "next" || call.method == "next_for") && call.args.len() == 1
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        let inner = attribute
            .meta
            .require_list()
            .map(|list| list.tokens.to_string());
        is_cfg && inner.is_ok_and(|text| text == "test")
    })
}

fn returns_failure(head: &Signature) -> bool {
    match &head.output {
        ReturnType::Type(_, returned) => {
            matches!(&**returned, syn::Type::Path(path) if path.path.is_ident("Failure"))
        }
        ReturnType::Default => false,
    }
}

/// The files of the crates that make failures, without tests.
fn sources() -> Result<Vec<(Source, syn::File)>> {
    let mut parsed = Vec::new();
    for source in tree::files(&[".rs"])? {
        let is_listed = CRATES.iter().any(|listed| {
            let rest = source.path.strip_prefix(listed);
            rest.is_some_and(|rest| rest.starts_with('/'))
        });
        let mut parts = source.path.split('/');
        let is_source = parts.any(|part| part == "src");
        let is_test = parts.any(|part| part == "tests" || part == "tests.rs");
        if is_listed && is_source && !is_test {
            let file = syn::parse_file(&source.text).context(source.path.clone())?;
            parsed.push((source, file));
        }
    }
    Ok(parsed)
}

/// The names of the functions that a file defines outside of modules and types.
fn functions_of(file: &syn::File) -> BTreeSet<String> {
    let names = file.items.iter().filter_map(|item| match item {
        syn::Item::Fn(function) => Some(function.sig.ident.to_string()),
        _ => None,
    });
    names.collect()
}

/// How often each function, named after its file, makes a failure without a next step.
fn bare(sources: &[(Source, syn::File)]) -> BTreeMap<String, usize> {
    let mut makers = Makers::default();
    loop {
        let mut found = Makers::default();
        let mut bare = BTreeMap::new();
        for (source, file) in sources {
            let mut reader = Reader::new(&source.path, &makers);
            reader.defined = functions_of(file);
            reader.visit_file(file);
            found.shared.extend(reader.found.shared);
            found.own.extend(reader.found.own);
            for function in reader.bare {
                let place = format!("{} {function}", source.path);
                *bare.entry(place).or_default() += 1;
            }
        }
        if found == makers {
            return bare;
        }
        makers = found;
    }
}

#[test]
fn a_failure_has_a_next_step_or_a_reason_to_have_none() -> Result<()> {
    let found = bare(&sources()?);
    let listed = WITHOUT.iter().flat_map(|(_, places)| *places);
    let listed = listed.map(|(place, count)| ((*place).to_owned(), *count));
    let listed: BTreeMap<String, usize> = listed.collect();
    let differences = |one: &BTreeMap<String, usize>, other: &BTreeMap<String, usize>| {
        let more = one
            .iter()
            .filter(|(place, count)| other.get(*place).copied().unwrap_or_default() < **count);
        let lines = more.map(|(place, count)| format!("\n  {place} ({count})"));
        lines.collect::<String>()
    };
    let unlisted = differences(&found, &listed);
    let outdated = differences(&listed, &found);
    assert!(
        unlisted.is_empty(),
        "a failure is made without .next(STEP), and not listed:{unlisted}"
    );
    assert!(
        outdated.is_empty(),
        "listed, but made no more without a step:{outdated}"
    );
    Ok(())
}

#[test]
fn a_failure_without_a_next_step_is_found_wherever_it_is_made() -> Result<()> {
    let found = |text: &str| -> Result<usize> {
        let source = Source {
            path: "ckpt/src/x.rs".to_owned(),
            text: text.to_owned(),
        };
        let file = syn::parse_file(&source.text)?;
        Ok(bare(&[(source, file)]).values().sum())
    };
    let made = [
        (1, "fn f() -> R { Err(Failure::new(S, m)) }"),
        (0, "fn f() -> R { Err(Failure::new(S, m).next(n)) }"),
        (
            0,
            "fn f() -> R { let e = Failure::new(S, m); Err(e.next(n)) }",
        ),
        (1, "fn f() -> R { let e = Failure::new(S, m); Err(e) }"),
        (
            0,
            "fn f() -> R { let mut e = Failure::new(S, m); e.next = n; Err(e) }",
        ),
        (
            1,
            "fn f() -> R { let g = |m| Failure::new(S, m); a(g(1).next(n))?; b(g(2)) }",
        ),
        (
            1,
            "fn f() -> R { let g = |m| Failure::new(S, m); a().map_err(g) }",
        ),
        (
            0,
            "fn f() -> R { let g = |m| Failure::new(S, m).next(n); a().map_err(g) }",
        ),
        (
            1,
            "fn g(m: M) -> Failure { Failure::new(S, m) } fn f() -> R { a(g(1).next(n))?; b(g(2)) }",
        ),
        (
            1,
            "fn f() -> R { select! { a = b => Err(Failure::new(S, m)), } }",
        ),
        (1, r#"fn f() -> R { bail!("no"); }"#),
        (0, r#"fn f() -> R { bail!(Refusal::new("no", "try")); }"#),
        (
            0,
            "#[cfg(test)] mod tests { fn f() -> R { Err(Failure::new(S, m)) } }",
        ),
    ];
    for (count, text) in made {
        assert_eq!(found(text)?, count, "{text}");
    }
    Ok(())
}
