//! Starts a program in a clean environment and collects everything it left: status, output, report, journal.

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A program to start.
pub struct Run {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    preload: Option<PathBuf>,
    /// The library is not preloaded: its path is in `LATE_LIBRARY`, for a program that loads it by itself.
    late: bool,
    driver: bool,
    limit: Duration,
    /// A command of the shell's that comes before the program, in its process.
    before: Option<String>,
}

/// What a program left.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended; after the time limit it was killed.
    pub status: ExitStatus,
    /// Whether the time limit ended it.
    pub timed_out: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The run report (`FT_REPORT`), if the library wrote one.
    pub report: Option<Value>,
    /// simcuda's journal, if the process ended in an orderly way and used it.
    pub journal: Option<Value>,
    /// Time from start to end.
    pub wall: Duration,
}

/// The folder of the running test binary, which holds the shared libraries; programs lie in its parent.
fn beside() -> PathBuf {
    let own = std::env::current_exe().expect("the test binary knows its path");
    own.parent().expect("a binary lies in a folder").to_owned()
}

fn found(candidates: &[PathBuf], what: &str) -> PathBuf {
    let hit = candidates.iter().find(|path| path.is_file());
    hit.unwrap_or_else(|| panic!("{what} is not built; looked at {candidates:?}")).clone()
}

/// A shared library, as cargo built it for this test binary.
fn library(name: &str) -> PathBuf {
    let folder = beside();
    found(&[folder.join(name), folder.join("..").join(name)], name)
}

/// The preloaded library, as cargo built it for this test binary.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn preload_library() -> PathBuf {
    library("libflextensor.so")
}

/// simcuda, as cargo built it for this test binary.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn simcuda_library() -> PathBuf {
    library("libsimcuda.so")
}

/// A fresh folder that holds `libcuda.so.1` for `LD_LIBRARY_PATH`.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn driver_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = simcuda_library().canonicalize().expect("simcuda has a path");
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1"))
        .expect("a link in a fresh folder");
    folder
}

/// Whether tests are asked to run on a real driver.
#[must_use]
pub fn real_gpu() -> bool {
    std::env::var_os("FT_REAL_GPU").is_some_and(|value| value == "1")
}

/// Whether every program under the library runs in check mode (`TEST_CHECK=1`), whatever its test is about. Tests that count calls or bytes do not hold then.
fn all_are_checked() -> bool {
    std::env::var_os("TEST_CHECK").is_some_and(|value| value == "1")
}

impl Run {
    /// A program of this crate (a `[[bin]]`), by name.
    ///
    /// # Panics
    /// When it is not built.
    #[must_use]
    pub fn program(name: &str) -> Self {
        let folder = beside();
        Self::command(found(&[folder.join("..").join(name), folder.join(name)], name))
    }

    /// Any command, such as `/bin/true`.
    #[must_use]
    pub fn command(program: impl AsRef<Path>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
            preload: None,
            late: false,
            driver: true,
            limit: Duration::from_secs(60),
            before: None,
        }
    }

    /// Preloads the library.
    #[must_use]
    pub fn preload(mut self) -> Self {
        self.preload = Some(preload_library());
        self
    }

    /// Tells the program in `LATE_LIBRARY` where the library is, instead of preloading it.
    #[must_use]
    pub fn load_late(mut self) -> Self {
        self.preload = Some(preload_library());
        self.late = true;
        self
    }

    /// Preloads the build of the library that has faults on demand, with this one (`interposer/src/runtime/check/seeds.rs`).
    #[must_use]
    pub fn preload_with_fault(mut self, fault: &str) -> Self {
        self.preload = Some(library("libflextensor_seeded.so"));
        self.option("FLEXTENSOR_SEEDED_FAULT", fault)
    }

    /// Runs without a CUDA driver: no `libcuda.so.1` is offered.
    #[must_use]
    pub fn without_driver(mut self) -> Self {
        self.driver = false;
        self
    }

    /// Sets an environment variable, such as an option of the library (`FT_MAX_GPU_MEM`).
    #[must_use]
    pub fn option(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets a variable of simcuda; `name` without the prefix `SIMCUDA_`.
    #[must_use]
    pub fn sim(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.option(&format!("SIMCUDA_{name}"), value)
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Lets a shell run `command` first, which then becomes the program if it succeeds: for limits, such as `ulimit -l 0`.
    #[must_use]
    pub fn behind(mut self, command: &str) -> Self {
        self.before = Some(command.to_owned());
        self
    }

    /// How long it may take; 60 seconds when not set.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    fn prepare(&self, folder: &Path) -> Command {
        let mut command = match &self.before {
            None => Command::new(&self.program),
            Some(before) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]).arg(&self.program);
                shell
            }
        };
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "LD_PRELOAD" || text.starts_with("FT_") || text.starts_with("SIMCUDA_") {
                command.env_remove(&name);
            }
        }
        if self.driver && !real_gpu() {
            command.env("LD_LIBRARY_PATH", folder);
            command.env("SIMCUDA_JOURNAL", folder.join("journal.json"));
        }
        if let Some(library) = &self.preload {
            command.env(if self.late { "LATE_LIBRARY" } else { "LD_PRELOAD" }, library);
            // These threads of the library compare weights in the background; what is torn is different then, and that is all they want to know.
            command.env("SIMCUDA_TORN_READERS", "ft-readout,ft-verify");
            command.env("FT_REPORT", folder.join("report.json"));
            if all_are_checked() {
                command.env("FT_CHECK", "1");
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it for questions and answers; what it writes to stderr is shown.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    pub fn talk(self) -> Talk {
        let folder = driver_folder();
        let mut command = self.prepare(folder.path());
        let mut child =
            command.stdin(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap_or_else(|error| {
                panic!("{} does not start: {error}", self.program.display());
            });
        let questions = child.stdin.take().expect("stdin is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Talk { child, questions, answers, _folder: folder }
    }

    /// Runs to the end.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    pub fn start(self) -> Outcome {
        let folder =
            if self.driver && !real_gpu() { driver_folder() } else { tempfile::tempdir().expect("a folder") };
        let begin = Instant::now();
        let mut child = self.prepare(folder.path()).spawn().unwrap_or_else(|error| {
            panic!("{} does not start: {error}", self.program.display());
        });
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        // Checking is slow.
        let limit = if all_are_checked() { self.limit * 4 } else { self.limit };
        let (status, timed_out) = wait(&mut child, limit);
        let wall = begin.elapsed();
        let json = |name| {
            let text = std::fs::read_to_string(folder.path().join(name)).ok()?;
            serde_json::from_str(&text).ok()
        };
        let outcome = Outcome {
            status,
            timed_out,
            stdout: stdout.join().expect("the reader of stdout ends"),
            stderr: stderr.join().expect("the reader of stderr ends"),
            report: json("report.json"),
            journal: json("journal.json"),
            wall,
        };
        if all_are_checked() {
            outcome.assert_no_findings();
        }
        outcome
    }
}

/// A program that answers line by line, until this is dropped.
pub struct Talk {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    _folder: TempDir,
}

impl Talk {
    /// Writes one line and reads one.
    ///
    /// # Panics
    /// When the program has ended.
    #[must_use]
    pub fn ask(&mut self, question: &str) -> String {
        writeln!(self.questions, "{question}").expect("the program listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the program writes text");
        assert!(!answer.is_empty(), "the program has ended: {:?}", self.child.try_wait());
        answer.trim_end().to_owned()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, limit: Duration) -> (ExitStatus, bool) {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return (status, false);
        }
        if Instant::now() >= end {
            child.kill().expect("a child can be killed");
            return (child.wait().expect("a killed child ends"), true);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

impl Outcome {
    /// Everything it left, for a message.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("{} after {:?}", self.status, self.wall);
        if self.timed_out {
            text.push_str(", ended by the time limit");
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        text
    }

    /// Fails the test unless the program ended well.
    ///
    /// # Panics
    /// With everything the program left.
    pub fn assert_success(&self) -> &Self {
        assert!(self.status.success(), "{}", self.describe());
        self
    }

    /// Fails the test if check mode found anything; says nothing of a run that was not checked.
    ///
    /// # Panics
    /// With what was found.
    pub fn assert_no_findings(&self) -> &Self {
        let found =
            self.stderr.lines().any(|line| line.starts_with("flextensor: check: ") && line.ends_with(']'));
        assert!(!found, "{}", self.describe());
        self
    }

    /// Fails the test if simcuda noticed any misuse.
    ///
    /// # Panics
    /// With simcuda's messages, or when there is no journal.
    pub fn assert_nothing_detected(&self) -> &Self {
        let journal = self.journal.as_ref().unwrap_or_else(|| panic!("no journal: {}", self.describe()));
        let detections = journal["detections"].as_object().expect("a journal counts detections");
        let any = detections.values().any(|count| count.as_u64() != Some(0));
        assert!(!any, "{:#}\n{}", journal["messages"], self.describe());
        self
    }

    /// A number of simcuda's journal by JSON pointer, such as `/alive/handles`; 0 when it is not there.
    #[must_use]
    pub fn journal_number(&self, pointer: &str) -> u64 {
        let journal = self.journal.as_ref();
        journal.and_then(|journal| journal.pointer(pointer)).and_then(Value::as_u64).unwrap_or(0)
    }
}
