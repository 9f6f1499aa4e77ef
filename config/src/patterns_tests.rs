//! Tests of `patterns` over small models.

use super::*;

fn module(path: &str, class: &str, parameters: &[&str]) -> Module {
    Module {
        path: path.to_owned(),
        class_name: class.to_owned(),
        class_full_name: match class {
            "Linear" => "torch.nn.modules.linear.Linear".to_owned(),
            _ => format!("app.model.{class}"),
        },
        parameters: parameters.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// embed, two layers of attention, MLP and norm, head; one parameter on the root itself.
fn model() -> Vec<Module> {
    let mut modules = vec![module("", "Net", &["scale"]), module("embed", "Embedding", &["weight"])];
    modules.push(module("layers", "ModuleList", &[]));
    for layer in 0..2 {
        modules.push(module(&format!("layers.{layer}"), "Block", &[]));
        modules.push(module(&format!("layers.{layer}.attention"), "Linear", &["weight", "bias"]));
        modules.push(module(&format!("layers.{layer}.mlp"), "Mlp", &[]));
        modules.push(module(&format!("layers.{layer}.mlp.up"), "Linear", &["weight"]));
        modules.push(module(&format!("layers.{layer}.norm"), "Norm", &["weight"]));
    }
    modules.push(module("head", "Linear", &["weight"]));
    modules
}

fn strings(entries: &[&str]) -> Vec<String> {
    entries.iter().map(|&entry| entry.to_owned()).collect()
}

fn select(include: &[&str], exclude: &[&str]) -> Selected {
    Selection::parse(Some(&strings(include)), &strings(exclude)).unwrap().apply(&model())
}

fn traps(selected: &Selected) -> Vec<String> {
    selected.traps.iter().map(|index| model()[*index].path.clone()).collect()
}

fn streamed(selected: &Selected) -> Vec<String> {
    let modules = model();
    each_parameter(&modules)
        .filter(|(module, held)| selected.streamable[*module][*held])
        .map(|(module, held)| modules[module].parameter_path(&modules[module].parameters[held]))
        .collect()
}

const BLOCKS: [&str; 8] = [
    "layers.0.attention.weight",
    "layers.0.attention.bias",
    "layers.0.mlp.up.weight",
    "layers.0.norm.weight",
    "layers.1.attention.weight",
    "layers.1.attention.bias",
    "layers.1.mlp.up.weight",
    "layers.1.norm.weight",
];

#[test]
fn an_explicit_star_is_one_unit_for_each_top_level_child() {
    let selected = select(&["*"], &[]);
    assert_eq!(traps(&selected), ["embed", "layers", "head"]);
    assert!(!streamed(&selected).contains(&"scale".to_owned()), "the root's own parameters are no child's");
    assert_eq!(streamed(&selected).len(), 10);
}

#[test]
fn unset_patterns_differ_from_an_explicit_star() {
    let unset = Selection::parse(None, &strings(&["head"])).unwrap();
    let star = Selection::parse(Some(&strings(&["*"])), &strings(&["head"])).unwrap();
    assert!(unset.is_automatic() && !star.is_automatic());
    let selected = unset.apply(&model());
    assert!(selected.traps.is_empty(), "the caller finds the units");
    assert!(streamed(&selected).contains(&"scale".to_owned()));
    assert!(!streamed(&selected).contains(&"head.weight".to_owned()));
    assert!(selected.excluded[model().len() - 1]);
}

#[test]
fn a_star_behind_a_list_is_one_unit_for_each_layer() {
    for pattern in ["layers.*", "name:layers.*", " name: layers.* "] {
        let selected = select(&[pattern], &[]);
        assert_eq!(traps(&selected), ["layers.0", "layers.1"], "{pattern}");
        assert_eq!(streamed(&selected), BLOCKS, "{pattern}");
    }
}

#[test]
fn the_outermost_match_is_the_unit() {
    let selected = select(&["layers.*.mlp", "layers.*", "layers.0.attention"], &[]);
    assert_eq!(traps(&selected), ["layers.0", "layers.1"]);
    assert_eq!(traps(&select(&["class:Linear", "layers"], &[])), ["layers", "head"]);
}

#[test]
fn a_class_matches_by_short_or_full_name_and_brings_all_parameters_below() {
    assert_eq!(streamed(&select(&["class:Block"], &[])), BLOCKS);
    let expected = ["layers.0.attention", "layers.0.mlp.up", "layers.1.attention", "layers.1.mlp.up", "head"]
        .map(str::to_owned);
    assert_eq!(traps(&select(&["class:Linear"], &[])), expected);
    assert_eq!(traps(&select(&["class:torch.nn.*.Linear"], &[])), expected);
    assert_eq!(traps(&select(&["class:*lock"], &[])), ["layers.0", "layers.1"]);
    assert!(traps(&select(&["class:Lin"], &[])).is_empty());
}

#[test]
fn no_name_pattern_names_the_root() {
    assert_eq!(traps(&select(&["**"], &[])), ["embed", "layers", "head"]);
}

#[test]
fn the_root_can_be_a_unit_by_its_class() {
    let selected = select(&["class:Net"], &[]);
    assert_eq!(traps(&selected), [""]);
    assert_eq!(streamed(&selected).len(), 11);
}

#[test]
fn a_parameter_pattern_takes_parameters_and_is_cut_to_find_units() {
    let selected = select(&["layers.*.weight"], &[]);
    assert_eq!(traps(&selected), ["layers.0", "layers.1"]);
    assert!(streamed(&selected).iter().all(|path| path.starts_with("layers.") && path.ends_with(".weight")));
    assert_eq!(streamed(&selected).len(), 6);
    assert_eq!(traps(&select(&["*.mlp.up.weight"], &[])), ["layers.0.mlp.up", "layers.1.mlp.up"]);
    let everywhere = select(&["*.weight"], &[]);
    assert_eq!(streamed(&everywhere).len(), 8);
    assert_eq!(traps(&everywhere).len(), 8, "what is left is a star: the holders, {:?}", traps(&everywhere));
    assert!(traps(&everywhere).contains(&"layers.1.mlp.up".to_owned()));
}

#[test]
fn a_parameter_of_the_root_has_no_unit() {
    let selected = select(&["scale"], &[]);
    assert_eq!((traps(&selected).len(), streamed(&selected)), (0, strings(&["scale"])));
}

#[test]
fn excludes_come_last_and_take_everything_below() {
    let selected = select(&["layers.*", "head"], &["head", "*.norm", "class:Mlp"]);
    assert_eq!(traps(&selected), ["layers.0", "layers.1"]);
    assert_eq!(
        streamed(&selected),
        [
            "layers.0.attention.weight",
            "layers.0.attention.bias",
            "layers.1.attention.weight",
            "layers.1.attention.bias"
        ]
    );
    let one_left = select(&["layers.*"], &["layers.0"]);
    assert_eq!(traps(&one_left), ["layers.1"]);
    assert_eq!(streamed(&one_left), BLOCKS[4..]);
    assert!(!streamed(&select(&["layers.*"], &["*.bias"])).iter().any(|path| path.ends_with("bias")));
    assert!(traps(&select(&["layers.*"], &["layers"])).is_empty());
}

#[test]
fn a_name_is_not_below_another_that_only_begins_alike() {
    let modules = vec![module("layer", "A", &["weight"]), module("layers", "B", &["weight"])];
    let selected = Selection::parse(Some(&strings(&["layer"])), &[]).unwrap().apply(&modules);
    assert_eq!(selected.streamable, [vec![true], vec![false]]);
}

#[test]
fn patterns_that_match_nothing_are_reported() {
    let selected = select(&["layers.*", "decoder.*", "class:Nothing"], &["*.gate"]);
    assert_eq!(selected.unmatched, ["decoder.*", "class:Nothing", "*.gate"]);
}

#[test]
fn entries_that_are_no_patterns_are_refused_with_their_index() {
    let refuse = |include: &[&str], exclude: &[&str]| {
        Selection::parse(Some(&strings(include)), &strings(exclude)).unwrap_err().to_string()
    };
    assert!(refuse(&["a", "  "], &[]).starts_with("include_patterns[1] is empty"));
    assert!(
        refuse(&[], &["class: "]).starts_with("exclude_patterns[0] \"class:\" has nothing behind its prefix")
    );
    assert!(refuse(&["name:"], &[]).contains("nothing behind"));
    assert!(
        refuse(&["a", "b", "type:Linear"], &[])
            .starts_with("include_patterns[2] has the unknown prefix \"type:\"")
    );
}
