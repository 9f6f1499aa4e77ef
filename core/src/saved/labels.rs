//! The schema-3 part of a profile as our models say it: a label for each repeated block and for each other module with weights, in order of
//! use; what each streams is brought in while the label before it runs, into blocks that neighbours do not share. Nothing of ours
//! is read back from here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{Additions, SCHEMA, Saved, SavedModel, SavedOwner, SavedStat, SavedTensor};
use crate::link::LinkCurve;

impl Saved {
    /// The file for these additions. Times are rounded to nanoseconds, speeds to MB/s, so that text and numbers are the same; times that
    /// are negative or no numbers become 0.
    #[must_use]
    pub fn of(mut ours: Additions) -> Saved {
        round(&mut ours);
        let link = ours.gpus.first().map_or_else(LinkCurve::default, |gpu| LinkCurve::new(gpu.idle.clone()));
        let mut saved = Saved::empty();
        let prefixed = ours.models.len() > 1;
        let mut first = 0;
        for (at, model) in ours.models.iter().enumerate() {
            let prefix = if prefixed { format!("model{at}.") } else { String::new() };
            let view = View { model, link: &link, prefix, first };
            view.describe(&mut saved);
            first += model.weights.len();
        }
        saved.flextensor = Some(ours);
        saved
    }

    fn empty() -> Saved {
        Saved {
            version: SCHEMA,
            loader_type: "allocation_block_transfer".to_owned(),
            tensor_id_to_name_map: BTreeMap::new(),
            allocation_ordered: BTreeMap::new(),
            label_to_size_map: BTreeMap::new(),
            block_sizes: BTreeMap::new(),
            load_strategy: BTreeMap::new(),
            release_strategy: BTreeMap::new(),
            label_to_block_id: BTreeMap::new(),
            stats: Vec::new(),
            transfer_to_compute_map: BTreeMap::new(),
            view_tensors_ids: Vec::new(),
            view_tensors_names: Vec::new(),
            gpu_tensors_names: Vec::new(),
            shm_block_name_map: None,
            managed_tensor_dtypes: BTreeMap::new(),
            managed_tensor_layouts: BTreeMap::new(),
            flextensor: None,
        }
    }
}

/// One model on its way into the file.
struct View<'a> {
    model: &'a SavedModel,
    link: &'a LinkCurve,
    prefix: String,
    /// Tensor id of its first weight.
    first: usize,
}

impl View<'_> {
    fn describe(&self, saved: &mut Saved) {
        let labels = self.labels();
        let streamed = self.streamed_bytes();
        let order = self.order(&labels);
        let block0 = saved.block_sizes.len() as u64;
        let mut loaded: BTreeMap<&str, Vec<SavedTensor>> = BTreeMap::new();
        for (at, weight) in self.model.weights.iter().enumerate() {
            let name = format!("{}{}", self.prefix, weight.name);
            saved.tensor_id_to_name_map.insert((self.first + at).to_string(), name.clone());
            if weight.tied.is_some() {
                saved.view_tensors_ids.push(json!(self.first + at));
                saved.view_tensors_names.push(name);
            } else if streamed[at] == 0 {
                saved.gpu_tensors_names.push(name);
            }
        }
        let mut members: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, weight) in self.model.weights.iter().enumerate() {
            if let Some(label) = labels.get(&weight.owner) {
                members.entry(label).or_default().push(at);
            }
        }
        let durations = self.durations(&labels);
        for label in &order {
            let of = members.remove(label.as_str()).unwrap_or_default();
            let tensors = of.iter().map(|&at| self.tensor(at, self.model.weights[at].bytes)).collect();
            saved.stats.push(SavedStat {
                label: label.clone(),
                tensors,
                duration: nanoseconds(durations.get(label.as_str()).copied().unwrap_or(0.0)),
            });
            let moves = of.iter().filter(|&&at| streamed[at] > 0);
            let moves: Vec<SavedTensor> = moves.map(|&at| self.tensor(at, streamed[at])).collect();
            if !moves.is_empty() {
                loaded.insert(label, moves);
            }
        }
        self.transfers(saved, &order, loaded, block0);
    }

    /// Every label that streams is loaded while the one before it runs; the first one while the last one does.
    fn transfers(
        &self,
        saved: &mut Saved,
        order: &[String],
        mut loaded: BTreeMap<&str, Vec<SavedTensor>>,
        block0: u64,
    ) {
        let mut turn = 0;
        let streams = loaded.len() as u64;
        for (at, label) in order.iter().enumerate() {
            let Some(tensors) = loaded.remove(label.as_str()) else { continue };
            let before = order[(at + order.len() - 1) % order.len()].clone();
            let bytes: u64 = tensors.iter().map(|tensor| tensor.size_bytes).sum();
            // Two blocks in turn; the last of an odd number has its own, because the first comes after it.
            let odd_last = streams > 1 && streams % 2 == 1 && turn + 1 == streams;
            let block = block0 + if odd_last { 2 } else { turn % 2 };
            turn += 1;
            let room = saved.block_sizes.entry(block.to_string()).or_default();
            *room = (*room).max(bytes);
            saved.allocation_ordered.entry(block.to_string()).or_default().push(before.clone());
            saved.label_to_block_id.insert(before.clone(), block);
            saved.label_to_size_map.insert(before.clone(), bytes);
            saved.transfer_to_compute_map.insert(before.clone(), label.clone());
            saved.release_strategy.insert(label.clone(), tensors.clone());
            saved.load_strategy.insert(before, tensors);
        }
    }

    fn tensor(&self, at: usize, bytes: u64) -> SavedTensor {
        SavedTensor {
            tensor_id: json!(self.first + at),
            name: format!("{}{}", self.prefix, self.model.weights[at].name),
            size_bytes: bytes,
            load_time_ms: nanoseconds(self.link.copy_ms(bytes)),
        }
    }

    /// By owner: its block's common path, or its own path where it is in no block. No two blocks have one label.
    fn labels(&self) -> BTreeMap<u32, String> {
        let mut groups: BTreeMap<(i32, u32), Vec<&SavedOwner>> = BTreeMap::new();
        for owner in &self.model.owners {
            let alone = if owner.trap < 0 { owner.owner } else { 0 };
            groups.entry((owner.trap, alone)).or_default().push(owner);
        }
        let mut taken = BTreeSet::new();
        let mut labels = BTreeMap::new();
        for owners in groups.values() {
            let path = common_path(owners);
            let mut label = format!("{}{path}", self.prefix);
            while label.is_empty() || !taken.insert(label.clone()) {
                label = format!("{label}#{}", owners[0].owner);
            }
            labels.extend(owners.iter().map(|owner| (owner.owner, label.clone())));
        }
        labels
    }

    /// Labels in order of first use; those that are never used follow in order of their owners.
    fn order(&self, labels: &BTreeMap<u32, String>) -> Vec<String> {
        let used = self.model.passes.first().map(|pass| pass.uses.as_slice()).unwrap_or_default();
        let holders: BTreeSet<u32> = self.model.weights.iter().map(|weight| weight.owner).collect();
        let mut seen = BTreeSet::new();
        let mut order: Vec<String> = Vec::new();
        for owner in used.iter().map(|used| used.owner).chain(holders) {
            match labels.get(&owner) {
                Some(label) if seen.insert(label) => order.push(label.clone()),
                _ => {}
            }
        }
        order
    }

    /// Milliseconds of each label's uses in the usual pass.
    fn durations<'a>(&self, labels: &'a BTreeMap<u32, String>) -> BTreeMap<&'a str, f64> {
        let mut durations = BTreeMap::new();
        for used in self.model.passes.first().map(|pass| pass.uses.as_slice()).unwrap_or_default() {
            if let Some(label) = labels.get(&used.owner) {
                *durations.entry(label.as_str()).or_insert(0.0) += used.ms;
            }
        }
        durations
    }

    /// Of each weight, the bytes that are streamed: a unit streams its end.
    fn streamed_bytes(&self) -> Vec<u64> {
        let mut streamed = vec![0; self.model.weights.len()];
        let Some(plan) = &self.model.plan else { return streamed };
        for run in &plan.runs {
            let Some(unit) = self.model.units.get(run.unit as usize) else { continue };
            let mut left = run.pages * plan.page_bytes;
            for &at in unit.weights.iter().rev() {
                let Some(weight) = self.model.weights.get(at as usize).filter(|w| w.tied.is_none()) else {
                    continue;
                };
                let bytes = weight.bytes.min(left);
                streamed[at as usize] = bytes;
                left -= bytes;
            }
        }
        streamed
    }
}

fn round(ours: &mut Additions) {
    for point in ours.gpus.iter_mut().flat_map(|gpu| gpu.idle.iter_mut().chain(&mut gpu.busy)) {
        point.gb_per_s = (point.gb_per_s * 1e3).round().max(1.0) / 1e3;
    }
    for model in &mut ours.models {
        for pass in &mut model.passes {
            let uses = pass.uses.iter_mut().map(|used| &mut used.ms);
            let times = uses.chain([&mut pass.tail_ms, &mut pass.resident_ms, &mut pass.host_ms]);
            times.for_each(|ms| *ms = nanoseconds(*ms));
        }
        if let Some(plan) = &mut model.plan {
            plan.predicted_ms = nanoseconds(plan.predicted_ms);
            plan.bound_ms = nanoseconds(plan.bound_ms);
            for of in &mut plan.forecasts {
                let times = [&mut of.resident_ms, &mut of.predicted_ms, &mut of.bound_ms];
                times.into_iter().for_each(|ms| *ms = nanoseconds(*ms));
            }
        }
    }
}

/// Milliseconds in whole nanoseconds.
fn nanoseconds(ms: f64) -> f64 {
    if ms.is_finite() { (ms.max(0.0) * 1e6).round() / 1e6 } else { 0.0 }
}

/// The dotted path that all of them begin with; of a single one, its own.
fn common_path(owners: &[&SavedOwner]) -> String {
    let mut parts: Vec<&str> = owners.first().map_or(Vec::new(), |owner| owner.path.split('.').collect());
    for owner in owners {
        let same = parts.iter().zip(owner.path.split('.')).take_while(|(a, b)| **a == *b).count();
        parts.truncate(same);
    }
    parts.join(".")
}
