//! The preload itself: what it exports and needs, that programs which never use CUDA notice nothing, and that every route to a driver function
//! ends at our function for the hooked names and at the driver's for all others. Runs small C programs (`programs/loader`) over a driver that
//! has every name of a real one and no function; what hooked functions do is tested elsewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// libflextensor.so as cargo built it for this test binary: beside it. `TEST_PRELOAD` names another build to be tested.
pub(crate) fn preload() -> PathBuf {
    if let Some(library) = std::env::var_os("TEST_PRELOAD") {
        return library.into();
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let library = test.with_file_name("libflextensor.so");
    assert!(library.exists(), "{} is missing: is flextensor-interposer a dev-dependency?", library.display());
    library
}

pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Names of docs/hooks.md, which is generated from the table and checked against it, in the table's order.
fn rows() -> Vec<String> {
    let page = std::fs::read_to_string(source("../docs/hooks.md")).expect("docs/hooks.md can be read");
    let names = page.lines().filter_map(|line| line.strip_prefix("| `cu")?.split('`').next());
    names.map(|name| format!("cu{name}")).collect()
}

fn hooked() -> BTreeSet<String> {
    rows().into_iter().collect()
}

/// Rows of a measured table, without comments and header.
pub(crate) fn table() -> Vec<[String; 4]> {
    let text =
        std::fs::read_to_string(source("fixtures/driver_addresses_13.tsv")).expect("the table can be read");
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let fields = lines.map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    fields.map(|row| row.try_into().expect("four fields")).collect()
}

/// A folder with a driver, and with programs that use it.
pub(crate) struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    /// Compiles the driver, without the names in `absent`.
    fn with_driver_lacking(absent: &[&str]) -> Stage {
        let stage = Stage { folder: tempfile::tempdir().expect("a temporary folder") };
        let rows: Vec<_> = table().into_iter().filter(|row| !absent.contains(&row[3].as_str())).collect();
        // Names that no request of the table ends at, but that are exported and hooked.
        let mut names: BTreeSet<String> = rows.iter().map(|row| row[3].clone()).chain(hooked()).collect();
        names.retain(|name| !absent.contains(&name.as_str()));
        let own = ["cuInit", "cuGetProcAddress", "cuGetProcAddress_v2"];
        let mut header = String::new();
        for name in names.iter().filter(|name| !own.contains(&name.as_str())) {
            header += &format!("EXPORT({name})\n");
        }
        for [symbol, version, flags, export] in &rows {
            header += &format!("ANSWER(\"{symbol}\", {version}, {flags}, {export})\n");
        }
        std::fs::write(stage.path("exports.h"), header).expect("the header can be written");
        stage.library("fake_driver", "libcuda.so.1", &["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]);
        stage
    }

    pub(crate) fn with_driver() -> Stage {
        Stage::with_driver_lacking(&[])
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn compile(&self, program: &str, output: &str, arguments: &[&str]) -> PathBuf {
        let output = self.path(output);
        let mut cc = Command::new("cc");
        cc.arg("-I").arg(self.folder.path()).args(["-fPIC", "-fno-builtin", "-O1", "-o"]).arg(&output);
        cc.arg(source(&format!("programs/loader/{program}.c"))).args(arguments).args(["-ldl", "-lpthread"]);
        let result = cc.output().expect("cc runs");
        assert!(result.status.success(), "{program}: {}", String::from_utf8_lossy(&result.stderr));
        output
    }

    pub(crate) fn library(&self, program: &str, output: &str, arguments: &[&str]) -> PathBuf {
        self.compile(program, output, &[&["-shared"], arguments].concat())
    }

    /// A program that sees the driver, under the preload.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("LD_PRELOAD", preload());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FT_")) {
            command.env_remove(name);
        }
        command
    }

    /// What one check prints under the preload, with the variables given.
    fn check(&self, name: &str, variables: &[(&str, &str)]) -> Output {
        let program = self.compile("checks", "checks", &[]);
        let output = self.command(&program).arg(name).envs(variables.iter().copied()).output();
        let output = output.expect("the check runs");
        assert!(
            output.status.success(),
            "{name}: {:?}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    fn lines_of(&self, name: &str, variables: &[(&str, &str)]) -> Vec<String> {
        String::from_utf8(self.check(name, variables).stdout)
            .expect("text")
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

/// Every answer of a route is our function of the same name for hooked names, and the driver's for all others.
pub(crate) fn assert_answers(printed: &str, routes: &[&str], answers_each: usize) {
    let hooked = hooked();
    let mut seen = std::collections::BTreeMap::new();
    for line in printed.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [route, .., export, file, name] = fields[..] else {
            panic!("an answer has seven fields: {line}")
        };
        let expected = if hooked.contains(export) { "libflextensor.so" } else { "libcuda.so.1" };
        assert_eq!((file, name), (expected, export), "{line}");
        *seen.entry(route.to_owned()).or_insert(0) += 1;
    }
    for &route in routes {
        assert!(seen.get(route).is_some_and(|&answers| answers >= answers_each), "{route}: {seen:?}");
    }
}

#[test]
fn every_request_of_a_real_runtime_ends_at_our_function_exactly_for_the_hooked_names() {
    let stage = Stage::with_driver();
    let program = stage.compile("routes", "routes", &[]);
    let output =
        stage.command(&program).arg(source("fixtures/driver_addresses_13.tsv")).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    assert_answers(&printed, &["dlsym", "proc_v1", "proc_v2", "proc_v2_of_proc"], table().len());
    assert_answers(&printed, &["proc_v2_legacy"], 300);
}

#[test]
fn simcudas_functions_are_reached_through_ours_by_every_route() {
    let stage = Stage { folder: harness::run::driver_folder() };
    let program = stage.compile("routes", "routes", &[]);
    let output =
        stage.command(&program).arg(source("fixtures/driver_addresses_13.tsv")).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).expect("text");
    let hooked = hooked();
    let of_hooked =
        printed.lines().filter(|line| line.split('\t').nth(4).is_some_and(|name| hooked.contains(name)));
    assert_answers(
        &of_hooked.collect::<Vec<_>>().join("\n"),
        &["dlsym", "proc_v1", "proc_v2", "proc_v2_of_proc"],
        70,
    );
}

#[test]
fn a_library_linked_to_the_driver_gets_our_functions_exactly_for_the_hooked_names() {
    let stage = Stage::with_driver();
    let driver = stage.path("libcuda.so.1");
    let linked = stage.library("linked", "liblinked.so", &[driver.to_str().expect("a text path")]);
    let lines = stage.lines_of("linked", &[("LINKED_LIBRARY", linked.to_str().expect("a text path"))]);
    assert_answers(&lines.join("\n"), &["elf"], hooked().len() - 3);
}

#[test]
fn rtld_next_and_constructors_see_what_they_would_see_without_us() {
    let stage = Stage::with_driver();
    let base = stage.library("base", "libbase.so", &["-Wl,-soname,libbase.so"]);
    let wrapper = stage.library(
        "wrapper",
        "libwrapper.so",
        &["-Wl,--no-as-needed", base.to_str().expect("a text path")],
    );
    assert_eq!(
        stage.lines_of("next", &[("WRAPPER_LIBRARY", wrapper.to_str().expect("a text path"))]),
        ["next 2"]
    );
}

#[test]
fn dlerror_says_nothing_after_a_lookup_of_ours_and_names_what_is_missing() {
    // The table's last name too: our search through the driver then ends with a failure, of which the program must not hear.
    let last = rows().pop().expect("the table has rows");
    let stage = Stage::with_driver_lacking(&["cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync_v2_ptsz", &last]);
    let expected =
        ["found libflextensor.so message none", "missing null message names it", "absent - message names it"];
    assert_eq!(stage.lines_of("errors", &[]), expected);
}

#[test]
fn other_libraries_functions_with_such_names_stay_theirs() {
    let stage = Stage::with_driver();
    let other = stage.library("base", "libother.so", &[]);
    let lines = stage.lines_of("strangers", &[("OTHER_LIBRARY", other.to_str().expect("a text path"))]);
    assert_eq!(lines, ["cudnnCreate libother.so", "cuMemAlloc_v2 libother.so"]);
}

/// Stage 2 (active), self-test done, all three routes.
const ACTIVE_ALL_ROUTES: u32 = 2 | 1 << 8 | 7 << 9;

#[test]
fn the_first_successful_cuinit_and_no_other_call_makes_us_active_by_all_routes() {
    let stage = Stage::with_driver();
    let active = format!("{ACTIVE_ALL_ROUTES}");
    let lines = stage.lines_of("states", &[]);
    let expected = ["before 0", "init 0", &format!("after {active}"), "again 0", &format!("then {active}")];
    assert_eq!(lines[..5], expected);
    assert_eq!(lines[5], "lookup libflextensor.so");
    let refused = stage.lines_of("states", &[("FAKE_DRIVER_REFUSES", "1")]);
    assert_eq!(refused[..5], ["before 0", "init 999", "after 0", "again 999", "then 0"]);
}

#[test]
fn switched_off_we_answer_with_the_drivers_own_addresses() {
    let stage = Stage::with_driver();
    let output = stage.check("states", &[("FT_ENABLED", "0")]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.ends_with("then 3\nlookup libcuda.so.1\n"), "{printed}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "switched off is no reason for a line");
}

#[test]
fn a_bad_configuration_is_one_line_on_stderr_and_stock_behaviour() {
    let stage = Stage::with_driver();
    let output = stage.check("states", &[("FT_MAX_GPU_MEM", "a lot")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("flextensor: ") && said.contains("a lot"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("then 3\nlookup libcuda.so.1\n"));
}

#[test]
fn a_child_forked_before_cuinit_starts_by_itself_and_one_forked_after_stands_aside() {
    let lines = Stage::with_driver().lines_of("forks", &[]);
    let expected =
        ["child before: init 0 stage 2", "parent stage 2", "child after: stage 5", "parent still 2"];
    assert_eq!(lines, expected);
}

#[test]
fn eight_threads_that_initialise_at_once_start_us_once() {
    let output = Stage::with_driver().check("threads", &[("FT_LOG", "info")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "failed 0 stage 2\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("flextensor: active").count(), 1, "{said}");
}

#[test]
fn a_handle_that_finds_other_functions_before_the_drivers_does_not_mislead_us() {
    let stage = Stage::with_driver();
    let driver = stage.path("libcuda.so.1");
    let wide =
        stage.library("base", "libwide.so", &["-Wl,--no-as-needed", driver.to_str().expect("a text path")]);
    let lines = stage.lines_of("wide_handle", &[("OTHER_LIBRARY", wide.to_str().expect("a text path"))]);
    assert_eq!(lines, ["asked 0 libflextensor.so", "allocated 0"]);
}

#[test]
fn a_function_that_an_old_driver_lacks_is_not_supported_whoever_else_has_one_of_its_name() {
    let stage = Stage::with_driver_lacking(&["cuMemAlloc_v2"]);
    let driver = stage.path("libcuda.so.1");
    let wide =
        stage.library("base", "libwide.so", &["-Wl,--no-as-needed", driver.to_str().expect("a text path")]);
    let wide = wide.to_str().expect("a text path");
    assert_eq!(stage.lines_of("wide_handle_old_driver", &[("OTHER_LIBRARY", wide)]), ["allocated 801"]);
}

#[test]
fn without_a_driver_our_exports_say_that_there_is_no_device() {
    let stage = Stage { folder: tempfile::tempdir().expect("a temporary folder") };
    assert_eq!(stage.lines_of("without_driver", &[]), ["init 100 alloc 3 stage 0"]);
}

#[test]
fn our_own_library_is_not_taken_for_the_driver_even_under_its_name() {
    let stage = Stage { folder: tempfile::tempdir().expect("a temporary folder") };
    let renamed = stage.path("libcuda.so.preload");
    std::fs::copy(preload(), &renamed).expect("the library can be copied");
    let renamed = renamed.to_str().expect("a text path");
    assert_eq!(stage.lines_of("own_handle", &[("LD_PRELOAD", renamed)]), ["init 100"]);
}

#[test]
fn a_driver_that_is_unloaded_and_loaded_again_is_found_again() {
    let stage = Stage::with_driver();
    let other = stage.library("base", "libother.so", &[]);
    let lines = stage.lines_of("reload", &[("OTHER_LIBRARY", other.to_str().expect("a text path"))]);
    assert_eq!(lines, ["first libflextensor.so second libflextensor.so other loaded", "init 0 stage 2"]);
}

fn run(program: &str, arguments: &[&str], preloaded: bool) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("LD_PRELOAD");
    if preloaded {
        command.env("LD_PRELOAD", preload());
    }
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

#[test]
fn programs_without_cuda_behave_the_same_and_hear_nothing() {
    let python = "import ctypes, ssl, sqlite3, subprocess, threading; print(ctypes.CDLL(None).getpid() > 0); \
                  print(subprocess.run(['sh', '-c', 'echo child'], capture_output=True, text=True))";
    let programs: [(&str, &[&str]); 8] = [
        ("true", &[]),
        ("sh", &["-c", "echo out; echo err >&2; exit 7"]),
        ("git", &["--version"]),
        ("gcc", &["-v"]),
        ("python3", &["-c", python]),
        ("perl", &["-e", "print 'p'"]),
        ("cargo", &["--version"]),
        ("ldconfig", &["-p"]),
    ];
    for (program, arguments) in programs {
        if ["perl", "git", "ldconfig"].contains(&program) && !installed(program) {
            continue;
        }
        let (with, without) = (run(program, arguments, true), run(program, arguments, false));
        assert_eq!(with.status, without.status, "{program}");
        assert_eq!(
            String::from_utf8_lossy(&with.stdout),
            String::from_utf8_lossy(&without.stdout),
            "{program}"
        );
        assert_eq!(
            String::from_utf8_lossy(&with.stderr),
            String::from_utf8_lossy(&without.stderr),
            "{program}"
        );
    }
}

/// `ptxas` and `cuobjdump` as the wheels of CUDA carry them, in the folder that `TEST_CUDA_TOOLS` names (tools/test.sh fetches them); torch's compilers start them.
#[test]
fn the_assembler_and_the_dumper_of_the_wheels_behave_the_same_and_say_no_more() {
    const PTX: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    let Some(tools) = std::env::var_os("TEST_CUDA_TOOLS").map(PathBuf::from) else {
        return println!("not run: TEST_CUDA_TOOLS names no folder");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("nothing.ptx");
    std::fs::write(&source, PTX).expect("a file in a fresh folder");
    let text = |path: &Path| path.to_str().expect("a text path").to_owned();
    let made = |preloaded: bool| {
        let object = folder.path().join("nothing.cubin");
        let assembled = run(
            &text(&tools.join("ptxas")),
            &["-arch=sm_90", &text(&source), "-o", &text(&object)],
            preloaded,
        );
        let dumped = run(&text(&tools.join("cuobjdump")), &["-elf", &text(&object)], preloaded);
        let bytes = std::fs::read(&object).expect("what ptxas made");
        std::fs::remove_file(&object).expect("the file is ours");
        assert!(assembled.status.success() && dumped.status.success(), "{assembled:?} {dumped:?}");
        (bytes, assembled, dumped)
    };
    assert_eq!(made(true), made(false));
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

#[test]
fn ldd_lists_us_and_is_otherwise_the_same() {
    let libraries = |output: Output| -> BTreeSet<String> {
        assert!(output.status.success() && output.stderr.is_empty());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect()
    };
    let (with, without) =
        (libraries(run("ldd", &["/bin/sh"], true)), libraries(run("ldd", &["/bin/sh"], false)));
    let added: Vec<_> =
        with.difference(&without).map(|path| path.rsplit('/').next().unwrap_or_default()).collect();
    assert!(added.contains(&"libflextensor.so"), "{added:?}");
    assert!(without.is_subset(&with));
}

#[test]
fn the_library_exports_the_table_and_dlsym_and_its_own_interface_and_nothing_else() {
    let output = run(
        "nm",
        &["-D", "--defined-only", "--format=posix", preload().to_str().expect("a text path")],
        false,
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let exported: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    let drivers: BTreeSet<String> = exported.iter().filter(|name| name.starts_with("cu")).cloned().collect();
    assert_eq!(drivers, hooked());
    let others = exported.difference(&drivers).filter(|name| !name.starts_with("ft_") && *name != "dlsym");
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(exported.contains("dlsym") && exported.contains("ft_status"));
    assert!(
        !text.contains('@'),
        "a versioned export would lose against the unversioned one that programs ask for"
    );
}

#[test]
fn the_library_is_bound_at_load_stays_loaded_and_takes_no_static_thread_storage() {
    let output = run("readelf", &["-dW", preload().to_str().expect("a text path")], false);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("BIND_NOW") && text.contains("NODELETE") && text.contains("SYMBOLIC"), "{text}");
    assert!(text.contains("[libflextensor.so]") && !text.contains("STATIC_TLS"), "{text}");
    let allowed =
        ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "libgcc_s.so.1"];
    for line in text.lines().filter(|line| line.contains("(NEEDED)")) {
        assert!(allowed.iter().any(|library| line.contains(&format!("[{library}]"))), "{line}");
    }
}

#[test]
fn the_release_gate_refuses_a_library_that_would_not_load_everywhere() {
    // A development build needs libgcc_s and this system's symbol versions; a C library has none of our exports.
    let stage = Stage { folder: tempfile::tempdir().expect("a temporary folder") };
    let stranger = stage.library("base", "libflextensor.so", &["-Wl,-soname,libother.so"]);
    let gate = source("../tools/check-library.sh");
    let gate = gate.to_str().expect("a text path");
    let refused = run(gate, &[stranger.to_str().expect("a text path")], false);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    for complaint in ["does not export", "exports cudnnCreate who", "another soname", "without NODELETE"] {
        assert!(said.contains(complaint), "{complaint}: {said}");
    }
    let old = run(gate, &[preload().to_str().expect("a text path"), "2.2"], false);
    let said = String::from_utf8_lossy(&old.stderr).into_owned();
    assert!(!old.status.success() && said.contains("allowed is up to 2.2"), "{said}");
}

/// Adds the time of a start of /bin/true.
fn start_cost(preloaded: bool, times: &mut Vec<Duration>) {
    let mut command = Command::new("/bin/true");
    command.env_remove("LD_PRELOAD");
    if preloaded {
        command.env("LD_PRELOAD", preload());
    }
    let start = Instant::now();
    assert!(command.status().expect("/bin/true runs").success());
    times.push(start.elapsed());
}

#[test]
fn a_start_of_bin_true_costs_at_most_a_millisecond_more() {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // Taken in turns, so that other work on the machine hits both alike.
    for _ in 0..150 {
        start_cost(true, &mut with);
        start_cost(false, &mut without);
    }
    with.sort();
    without.sort();
    // The lower quartile: a busy machine delays more starts than it speeds up.
    let (with, without) = (with[37], without[37]);
    assert!(with <= without + Duration::from_millis(1), "{with:?} with us, {without:?} without");
}
