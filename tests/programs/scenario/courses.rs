//! Stories of programs that say themselves how a model is learnt: counts and profile of its own, suspended times, options that change while it runs.

use super::scene::{MAY_STREAM, Scene};
use super::{Told, say};
use harness::ft::Ft;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "takes a course of its own" => a_course_of_its_own(),
        "is timed as a whole at last" => timed_as_a_whole(),
        "suspends its times" => suspended(),
        "changes its budget" => another_budget(),
        "starts from a folder of its own" => a_folder_of_its_own(),
        _ => return None,
    })
}

const OWNERS_AND_TRAPS: u32 = 3;

const SUSPEND: u32 = 0;
const RESUME: u32 = 1;
const CLEAR: u32 = 2;

/// The phase of the scene's model, as a digit.
fn phase(scene: &Scene) -> u64 {
    let phase = scene.ft.as_ref().map_or(-1, |ft| ft.model_phase(scene.model));
    u64::try_from(phase).unwrap_or(9)
}

/// A code of the interface, without its sign.
fn code(what: &str, answer: i32) {
    say(what, u64::from(answer.unsigned_abs()));
}

/// Passes, and the phase after each of them as the digits of one number.
fn phases(scene: &Scene, passes: u32) -> Result<u64, harness::driver::Failure> {
    let mut digits = 0;
    for _ in 0..passes {
        scene.pass()?;
        digits = 10 * digits + phase(scene);
    }
    Ok(digits)
}

/// Three passes of DISCOVERY, one in which compilers warm up, two that are timed.
fn a_course_of_its_own() -> Told {
    let mut scene = Scene::set(6, 2, MAY_STREAM)?;
    scene.drop_name();
    scene.name_after(|ft, model| code("course", ft.model_course(model, [3, 2, 1], Some(""))));
    if let Some(ft) = &scene.ft {
        code("late", ft.model_course(scene.model, [1, 1, 0], None));
        code("unknown", ft.model_course(99, [1, 1, 0], None));
    }
    say("phases", phases(&scene, 6)?);
    say("phase", phase(&scene));
    scene.pass()?;
    scene.finish()
}

/// One pass of DISCOVERY, three whose launches are looked at, one that is left alone; then INFERENCE.
fn timed_as_a_whole() -> Told {
    let mut scene = Scene::set(6, 2, MAY_STREAM)?;
    scene.drop_name();
    scene.name_after(|ft, model| code("course", ft.model_course(model, [1, 4, 0], Some(""))));
    let hits = |scene: &Scene| {
        let report = scene.ft.as_ref().and_then(Ft::report).unwrap_or_default();
        report["learning"]["hits"].as_u64().unwrap_or(0)
    };
    scene.pass()?;
    let mut looked_at = 0;
    for _ in 0..4 {
        let (before, wants) = (hits(&scene), wants_in_a_pass(&scene)?);
        looked_at = 10 * looked_at + u64::from(hits(&scene) > before);
        say("wants in the pass", wants);
    }
    say("looked at", looked_at);
    say("phase", phase(&scene));
    scene.pass()?;
    scene.finish()
}

/// A pass, and which owners and traps are wanted to be told of in it.
fn wants_in_a_pass(scene: &Scene) -> Told {
    let mut wants = 0;
    scene.pass_with(|scene, at| {
        wants = scene.ft.as_ref().map_or(99, |ft| u64::from(ft.wants(scene.model) & OWNERS_AND_TRAPS));
        scene.check(scene.main, at)
    })?;
    Ok(wants)
}

/// While times are suspended DISCOVERY goes on, and PROFILING does not.
fn suspended() -> Told {
    let scene = Scene::set(6, 2, MAY_STREAM)?;
    let profiling = |what: u32| scene.ft.as_ref().map_or(-9, |ft| ft.model_profiling(scene.model, what));
    code("unbalanced", profiling(RESUME));
    code("wrong", profiling(3));
    code("suspend", profiling(SUSPEND));
    code("suspend", profiling(SUSPEND));
    say("suspended", phases(&scene, 3)?);
    code("resume", profiling(RESUME));
    say("still", phases(&scene, 1)?);
    code("resume", profiling(RESUME));
    code("clear", profiling(CLEAR));
    say("resumed", phases(&scene, 1)?);
    say("phase", phase(&scene));
    scene.pass()?;
    scene.finish()
}

/// The budget that counts is the one that was set last before the plan.
fn another_budget() -> Told {
    let mut scene = Scene::set(6, 2, MAY_STREAM)?;
    let configure = |json: &str| scene.ft.as_ref().map_or(-9, |ft| ft.configure(json));
    code("refused", configure("{\"max_gpu_mem\": \"lots\"}"));
    code("taken", configure("{\"max_gpu_mem\": \"8MiB\", \"enabled\": false}"));
    let now = scene.ft.as_ref().and_then(harness::ft::Ft::config);
    say("enabled", u64::from(now.is_some_and(|config| config["enabled"] == true)));
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

/// Learnt and saved to `second argument`; named again it starts from there.
fn a_folder_of_its_own() -> Told {
    let folder = std::env::args().nth(2).unwrap_or_default();
    let mut scene = Scene::set(6, 2, MAY_STREAM)?;
    scene.learn()?;
    let saved = scene.ft.as_ref().map_or(-9, |ft| ft.profile_save(Some(&folder)));
    code("saved", saved);
    scene.drop_name();
    scene.name_after(|ft, model| {
        ft.model_course(model, [5, 5, 0], Some(&folder));
    });
    say("at once", phase(&scene));
    scene.pass()?;
    say("phase", phase(&scene));
    scene.finish()
}
