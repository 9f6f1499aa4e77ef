//! The profile file: what is written is read back, and whatever else is read is refused by name.

mod saved_models;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PlanRequest, StayReason, plan};
use flextensor_core::saved::{Saved, SavedError, SavedModel, parse};
use flextensor_core::units::{ModelId, UnitId};
use proptest::prelude::*;
use saved_models::{MIB, additions, model, planned};
use serde_json::{Value, json};

fn file() -> Saved {
    Saved::of(additions(vec![planned(model(4, 16), Some(64 * MIB))]))
}

/// What is said about the file after a change.
fn refused(change: impl FnOnce(&mut Value)) -> String {
    let mut value: Value = serde_json::from_str(&file().to_text()).expect("our own text is JSON");
    change(&mut value);
    let error = parse("p.json", &value.to_string()).expect_err("the change is a fault");
    let text = error.to_string();
    assert!(text.starts_with("profile `p.json`"), "{text}");
    text
}

fn ours(value: &mut Value) -> &mut Value {
    &mut value["flextensor"]["models"][0]
}

#[test]
fn what_is_written_is_read_back() {
    let file = file();
    assert!(file.flextensor.as_ref().is_some_and(|ours| ours.models[0].plan.is_some()));
    assert_eq!(parse("p.json", &file.to_text()), Ok(file));
}

#[test]
fn what_is_said_of_a_file_is_one_line_whatever_it_names() {
    let text = refused(|value| value["load_strategy"]["a\nb"] = json!([]));
    assert!(text.contains("a\\nb") && !text.contains('\n'), "{text:?}");
    let error = parse("p\n.json", "{").expect_err("no JSON").to_string();
    assert!(!error.contains('\n'), "{error:?}");
}

#[test]
fn a_file_of_two_models_keeps_their_names_apart() {
    let file = Saved::of(additions(vec![planned(model(2, 16), Some(64 * MIB)), planned(model(3, 12), None)]));
    assert_eq!(parse("p.json", &file.to_text()).as_ref(), Ok(&file));
    let labels: Vec<&str> = file.stats.iter().map(|stat| stat.label.as_str()).collect();
    assert_eq!(labels[..4], ["model0.embed", "model0.layers.0", "model0.layers.1", "model0.head"]);
    assert_eq!(
        file.tensor_id_to_name_map.len(),
        file.flextensor.map_or(0, |ours| ours.models.iter().map(|m| m.weights.len()).sum())
    );
}

#[test]
fn labels_are_the_repeated_blocks_with_their_times_and_transfers() {
    let file = file();
    let stat = file.stats.iter().find(|stat| stat.label == "layers.1").expect("a block");
    assert!((stat.duration - 0.5).abs() < 1e-9 && stat.tensors.len() == 2, "{stat:?}");
    assert_eq!(file.view_tensors_names, ["head.weight"]);
    for (before, label) in &file.transfer_to_compute_map {
        let moved = &file.load_strategy[before];
        assert_eq!(moved, &file.release_strategy[label]);
        assert!(
            !moved.is_empty()
                && moved.iter().all(|tensor| tensor.size_bytes > 0 && tensor.load_time_ms > 0.0)
        );
        assert!(moved.iter().all(|tensor| tensor.name.starts_with(label.as_str())), "{label}: {moved:?}");
    }
    let streamed: u64 = file.label_to_size_map.values().sum();
    let plan = file.flextensor.as_ref().and_then(|ours| ours.models[0].plan.as_ref()).expect("a plan");
    let pages: u64 = plan.runs.iter().map(|run| run.pages).sum();
    assert_eq!(streamed, pages * plan.page_bytes);
    for labels in file.allocation_ordered.values() {
        assert!(!labels.is_empty());
    }
}

#[test]
fn text_that_is_no_json_object_is_refused_with_its_place() {
    for text in ["", "{", "profile", "\u{0}", "{\"version\": 3,}"] {
        let error = parse("p.json", text).expect_err(text);
        assert!(matches!(error, SavedError::NotJson { .. }), "{error}");
        assert!(error.to_string().contains("line 1"), "{error}");
        assert!(!error.is_of_another_version());
    }
    for text in ["[]", "3", "null", "\"version\""] {
        let error = parse("p.json", text).expect_err(text);
        assert!(error.to_string().contains("no JSON object"), "{error}");
    }
}

#[test]
fn other_versions_are_refused_and_not_taken_for_broken() {
    for version in [json!(2), json!(4), json!("3"), json!(3.5), json!(null), json!(-3)] {
        let text = json!({ "version": version }).to_string();
        let error = parse("p.json", &text).expect_err("not version 3");
        let said = error.to_string();
        assert!(said.contains(&format!("version {version}")) && said.contains("only version 3"), "{said}");
        assert!(error.is_of_another_version());
    }
    let error = parse("p.json", r#"{"name": "something else"}"#).expect_err("no profile");
    assert!(error.to_string().contains("no key `version`") && error.is_of_another_version(), "{error}");
    let said = refused(|value| value["flextensor"]["format"] = json!(2));
    assert!(said.contains("flextensor.format 2") && said.contains("only format 1"), "{said}");
}

#[test]
fn a_missing_or_wrongly_typed_key_is_named() {
    for key in ["stats", "loader_type", "block_sizes", "load_strategy", "transfer_to_compute_map"] {
        let said = refused(|value| {
            value.as_object_mut().expect("an object").remove(key);
        });
        assert!(said.contains(key) && said.contains("missing"), "{said}");
    }
    let said = refused(|value| value["stats"][0]["duration"] = json!("long"));
    assert!(said.contains("\"long\"") && said.contains("expected f64"), "{said}");
    let said = refused(|value| ours(value)["units"][0]["pages"] = json!(-1));
    assert!(said.contains("-1") && said.contains("u64"), "{said}");
    let said = refused(|value| ours(value)["units"][0]["stay"] = json!("Bored"));
    assert!(said.contains("Bored"), "{said}");
}

#[test]
fn times_that_are_none_are_saved_as_nothing() {
    let mut toy = model(1, 16);
    toy.passes[0].uses[0].ms = f64::NAN;
    toy.passes[0].uses[1].ms = -1.0;
    toy.passes[0].tail_ms = f64::INFINITY;
    let read = parse("p.json", &Saved::of(additions(vec![toy])).to_text()).expect("sound");
    let pass = &read.flextensor.as_ref().expect("ours").models[0].passes[0];
    assert_eq!((pass.uses[0].ms, pass.uses[1].ms, pass.tail_ms), (0.0, 0.0, 0.0));
}

#[test]
fn unknown_keys_are_ignored() {
    let mut value: Value = serde_json::from_str(&file().to_text()).expect("our own text is JSON");
    value["later"] = json!({ "a": 1 });
    value["flextensor"]["mood"] = json!("good");
    ours(&mut value)["colour"] = json!("blue");
    assert_eq!(parse("p.json", &value.to_string()), Ok(file()));
}

#[test]
fn parts_that_contradict_each_other_are_refused() {
    type Change = fn(&mut Value);
    let first = |value: &Value, key: &str| {
        value[key].as_object().and_then(|map| map.keys().next().cloned()).expect("an entry")
    };
    let cases: [(&str, Change); 9] = [
        ("stats[embed].duration", |v| v["stats"][0]["duration"] = json!(-1.0)),
        ("milliseconds, 0 or more", |v| v["stats"][1]["tensors"][0]["load_time_ms"] = json!(-0.5)),
        ("`stats`", |v| v["stats"][1]["label"] = json!("embed")),
        ("tensor_id_to_name_map", |v| v["stats"][0]["tensors"][0]["tensor_id"] = json!(999)),
        ("is `other`", |v| v["stats"][0]["tensors"][0]["name"] = json!("other")),
        ("view_tensors_ids", |v| v["view_tensors_ids"] = json!(["ghost"])),
        ("transfer_to_compute_map", |v| v["transfer_to_compute_map"]["nobody"] = json!("embed")),
        ("load_strategy", |v| v["load_strategy"]["nobody"] = json!([])),
        ("allocation_ordered[9]", |v| v["allocation_ordered"]["9"] = json!(["embed"])),
    ];
    for (part, change) in cases {
        let said = refused(change);
        assert!(said.contains(part) && said.contains("allowed: "), "{part}: {said}");
    }
    let said = refused(|v| {
        let block = first(v, "block_sizes");
        v["block_sizes"][&block] = json!(5);
    });
    assert!(said.contains("block_sizes[") && said.contains("is 5"), "{said}");
    let said = refused(|v| {
        let label = first(v, "label_to_size_map");
        v["label_to_size_map"][&label] = json!(5);
    });
    assert!(said.contains("label_to_size_map["), "{said}");
    let said = refused(|v| {
        let label = first(v, "label_to_block_id");
        v["label_to_block_id"][&label] = json!(77);
    });
    assert!(said.contains("is 77") && said.contains("a block of `block_sizes`"), "{said}");
}

#[test]
fn positions_sizes_and_times_of_our_additions_are_not_trusted() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 24] = [
        ("gpus[0].idle", |v| v["flextensor"]["gpus"][0]["idle"] = json!([])),
        ("gpus[0].idle", |v| v["flextensor"]["gpus"][0]["idle"][0]["gb_per_s"] = json!(0.0)),
        ("gpus[0].busy", |v| v["flextensor"]["gpus"][0]["busy"][0]["copy_bytes"] = json!(0)),
        ("device", |v| ours(v)["device"] = json!(3)),
        ("owners", |v| ours(v)["owners"][1]["owner"] = json!(0)),
        ("weights[0].bytes", |v| ours(v)["weights"][0]["bytes"] = json!(0)),
        ("weights[1].tied", |v| ours(v)["weights"][1]["tied"] = json!(1)),
        ("units[1].weights", |v| ours(v)["units"][1]["weights"] = json!([])),
        ("units[1].weights", |v| ours(v)["units"][1]["weights"] = json!([900])),
        ("units[1].weights", |v| ours(v)["units"][1]["weights"] = json!([0])),
        ("units[1].pages", |v| ours(v)["units"][1]["pages"] = json!(0)),
        ("units[1].pages", |v| ours(v)["units"][1]["pages"] = json!(u64::MAX)),
        ("units[1].bytes", |v| ours(v)["units"][1]["bytes"] = json!(u64::MAX)),
        ("passes[0].shape", |v| ours(v)["passes"][0]["shape"] = json!("a1")),
        ("passes[0].uses[0].unit", |v| ours(v)["passes"][0]["uses"][0]["unit"] = json!(900)),
        ("passes[0].uses[0].owner", |v| ours(v)["passes"][0]["uses"][0]["owner"] = json!(900)),
        ("passes[0].uses[0].ms", |v| ours(v)["passes"][0]["uses"][0]["ms"] = json!(-1)),
        ("passes[0].tail_ms", |v| ours(v)["passes"][0]["tail_ms"] = json!(-1)),
        ("plan.chunk_pages", |v| ours(v)["plan"]["chunk_pages"] = json!(u64::MAX)),
        ("plan.forecasts[0].shape", |v| ours(v)["plan"]["forecasts"][0]["shape"] = json!("x")),
        ("plan.page_bytes", |v| ours(v)["plan"]["page_bytes"] = json!(0)),
        ("plan.ring_pages", |v| ours(v)["plan"]["ring_pages"] = json!(1 << 20)),
        ("plan.runs[0].start", |v| ours(v)["plan"]["runs"][0]["start"] = json!(1 << 20)),
        ("plan.runs[0].pages", |v| ours(v)["plan"]["runs"][0]["pages"] = json!(0)),
    ];
    for (part, change) in cases {
        let said = refused(change);
        assert!(said.contains(part) && said.contains("allowed: "), "{part}: {said}");
    }
    let said = refused(|v| {
        let unit = ours(v)["plan"]["runs"][0]["unit"].as_u64().expect("a position") as usize;
        ours(v)["units"][unit]["stay"] = json!("Hidden");
    });
    assert!(said.contains("stays (Hidden)"), "{said}");
    let said = refused(|v| {
        let again = ours(v)["plan"]["runs"][0].clone();
        ours(v)["plan"]["runs"].as_array_mut().expect("runs").push(again);
    });
    assert!(said.contains("each once"), "{said}");
    let said = refused(|v| {
        let run = ours(v)["plan"]["runs"][0].clone();
        ours(v)["units"][run["unit"].as_u64().expect("a position") as usize]["splittable"] = json!(false);
        ours(v)["plan"]["runs"][0]["pages"] = json!(1);
    });
    assert!(said.contains("runs[0].pages"), "{said}");
}

#[test]
fn a_request_from_the_file_plans_as_the_run_did() {
    let file = file();
    let saved = file.flextensor.as_ref().and_then(|ours| ours.models[0].plan.clone()).expect("a plan");
    let again = plan(&file.request(0, Some(64 * MIB), LinkCurve::default())).expect("a sound request");
    assert_eq!(again.ring_pages, saved.ring_pages);
    assert_eq!(again.layout.len(), saved.runs.len());
    assert!((again.predicted_ms - saved.predicted_ms).abs() < 1e-9);
    assert!(file.request(1, None, LinkCurve::default()).units.is_empty(), "nothing runs on device 1");
    assert!((file.link().gb_per_s(32 * MIB) - 55.0).abs() < 1e-9, "the link is the measured one");
}

#[test]
fn a_file_of_another_writer_is_planned_from_its_labels() {
    let mut file = file();
    file.flextensor = None;
    let file = parse("p.json", &file.to_text()).expect("schema 3 by itself is a profile");
    let request = file.request(0, Some(64 * MIB), file.link());
    // The tied head is a tensor of its own here: schema 3 does not say what it shares storage with.
    assert_eq!(request.units.len(), file.tensor_id_to_name_map.len());
    let total: f64 = request.passes[0].uses.iter().map(|used| used.compute_ms).sum();
    let durations: f64 = file.stats.iter().map(|stat| stat.duration).sum();
    assert!((total + request.passes[0].tail_ms - durations).abs() < 1e-9, "no time is lost");
    let made = plan(&request).expect("a sound request");
    assert!(made.streamed_bytes > 0 && made.peak_bytes <= 64 * MIB, "{made:?}");
}

#[test]
fn a_tensor_that_two_labels_use_is_one_unit() {
    let mut file = file();
    file.flextensor = None;
    let shared = file.stats[1].tensors[0].clone();
    file.stats[2].tensors.push(shared);
    let request = file.request(0, None, file.link());
    let names: std::collections::BTreeSet<&str> =
        request.units.iter().map(|unit| unit.name.as_str()).collect();
    assert_eq!(names.len(), request.units.len());
    plan(&request).expect("no unit is described twice");
}

#[test]
fn uses_without_a_unit_leave_their_time_to_the_next() {
    let mut toy = model(2, 16);
    let pass = toy.passes.remove(0);
    let profile = pass.profile(ModelId(3), |unit| (unit != 1).then_some(UnitId(unit)));
    assert_eq!(profile.uses.len(), pass.uses.len() - 1);
    assert!((profile.uses[1].compute_ms - 0.5).abs() < 1e-9);
    let all = pass.profile(ModelId(3), |_| Some(UnitId(0)));
    assert_eq!(all.uses.len(), pass.uses.len(), "uses of different owners stay apart");
    let none = pass.profile(ModelId(3), |_| None);
    assert!((none.tail_ms - pass.resident_ms).abs() < 1e-9);
}

#[test]
fn reasons_to_stay_survive_the_file() {
    let mut toy = model(2, 16);
    toy.units[1].stay = Some(StayReason::Escaped);
    let file = Saved::of(additions(vec![toy]));
    let read = parse("p.json", &file.to_text()).expect("sound");
    assert_eq!(read.request(0, None, LinkCurve::default()).units[1].stay, Some(StayReason::Escaped));
}

/// A table that lies in host memory for good takes part in no plan, and takes no GPU memory.
#[test]
fn what_is_read_by_rows_is_in_no_request_and_in_no_plan() {
    let mut toy = planned(model(4, 16), None);
    let peak = |toy: &SavedModel| {
        let ids: Vec<UnitId> = (0..toy.units.len() as u32).map(UnitId).collect();
        toy.plan.as_ref().expect("a plan").plan(toy, ModelId(1), &ids).peak_bytes
    };
    let (before, pages) = (peak(&toy), toy.units[0].pages);
    toy.units[0].stay = Some(StayReason::Rows);
    assert_eq!(before - peak(&toy), pages * PlanRequest::PAGE_BYTES);
    let second = model(2, 16);
    let count = toy.units.len() + second.units.len();
    let file = Saved::of(additions(vec![toy, second]));
    let request = parse("p.json", &file.to_text()).expect("sound").request(0, None, LinkCurve::default());
    assert_eq!(request.units.len(), count - 1);
    plan(&request).expect("no pass uses a unit that is not there, and none is described twice");
}

/// Every leaf and branch of the file, by path.
fn paths(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, inner)| {
            paths(inner, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), all);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, inner)| paths(inner, &format!("{at}/{index}"), all));
        }
        _ => {}
    }
}

fn anything() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!({})),
        Just(json!([])),
        Just(json!(true)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z.0-9]{0,12}".prop_map(|text| json!(text)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A file with any one value replaced is refused, or is a profile that a plan can be made from.
    #[test]
    fn no_change_of_a_value_leads_to_a_panic(at in any::<prop::sample::Index>(), with in anything()) {
        let mut value: Value = serde_json::from_str(&file().to_text()).expect("our own text is JSON");
        let mut all = Vec::new();
        paths(&value, "", &mut all);
        if let Some(spot) = value.pointer_mut(at.get::<String>(&all)) {
            *spot = with;
        }
        match parse("p.json", &value.to_string()) {
            Ok(read) => {
                let made = plan(&read.request(0, Some(64 * MIB), read.link())).expect("what is read is sound");
                prop_assert!(made.predicted_ms.is_finite());
            }
            Err(error) => prop_assert!(error.to_string().starts_with("profile `p.json`"), "{}", error),
        }
    }

    /// Cut or garbled text is refused.
    #[test]
    fn a_cut_file_is_refused(at in any::<prop::sample::Index>()) {
        let text = file().to_text();
        let end = at.index(text.len() - 2);
        prop_assert!(parse("p.json", text.get(..end).unwrap_or("")).is_err());
    }

    #[test]
    fn files_of_models_of_any_size_are_read_back(layers in 0u32..6, mib in 1u64..40, budget in 1u64..300) {
        let file = Saved::of(additions(vec![planned(model(layers, mib), Some(budget * MIB))]));
        prop_assert_eq!(parse("p.json", &file.to_text()), Ok(file));
    }
}
