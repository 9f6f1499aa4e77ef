//! Tells the C interface of a transformer's modules and weights, and of its forwards, as a hook in a framework would.

use super::network::Network;
use harness::ft::Ft;

/// Owner events of all owners are wanted.
const OWNERS: u32 = 1;
/// Trap events are wanted.
const TRAPS: u32 = 2;
/// The weight may be streamed.
const MAY_STREAM: u32 = 1;

/// A model as it was named: one owner for each weight, and one more for the head that is tied to the embedding.
pub(crate) struct Naming<'a> {
    ft: &'a Ft,
    model: u64,
    owners: u32,
}

impl<'a> Naming<'a> {
    pub(crate) fn name(ft: &'a Ft, network: &Network) -> Self {
        let model = ft.model_begin("transformer");
        let owners = network.weights.len() as u32;
        for (owner, weight) in (0..).zip(&network.weights) {
            let path = weight.name.trim_end_matches(".weight");
            let trap = weight.layer.map_or(-1, |layer| layer as i32);
            ft.model_owner(model, owner, path, "Linear", trap);
            ft.model_weight(model, &weight.name, weight.address, weight.bytes(), owner, MAY_STREAM);
        }
        ft.model_owner(model, owners, "head", "Linear", -1);
        if let Some(table) = network.weights.first() {
            ft.model_weight(model, "head.weight", table.address, table.bytes(), owners, MAY_STREAM);
        }
        ft.model_end(model);
        Self { ft, model, owners }
    }

    /// The owner under which a weight is used; `tied`: by the head.
    pub(crate) fn owner_of(&self, weight: usize, tied: bool) -> u32 {
        if tied { self.owners } else { weight as u32 }
    }

    pub(crate) fn pass_begin(&self) {
        self.ft.pass_begin(self.model, 1);
    }

    pub(crate) fn pass_end(&self) {
        self.ft.pass_end(self.model);
    }

    fn wants(&self, what: u32) -> bool {
        self.ft.wants(self.model) & what != 0
    }

    pub(crate) fn owner_enter(&self, owner: u32) {
        if self.wants(OWNERS) {
            self.ft.owner_enter(self.model, owner);
        }
    }

    pub(crate) fn owner_exit(&self, owner: u32) {
        if self.wants(OWNERS) {
            self.ft.owner_exit(self.model, owner);
        }
    }

    pub(crate) fn trap_enter(&self, trap: u32) {
        if self.wants(TRAPS) {
            self.ft.trap_enter(self.model, trap);
        }
    }

    pub(crate) fn trap_exit(&self, trap: u32) {
        if self.wants(TRAPS) {
            self.ft.trap_exit(self.model, trap);
        }
    }
}
