//! The pager's commands, performed on the driver: waits, events, copies in and write-backs of a ring. What is to be done is decided by core's pager; who
//! asks for it is `streaming`'s matter.

#![expect(unsafe_code, reason = "copies between our pinned memory and addresses that we mapped")]

use flextensor_core::pager::{Command, CopyStream, EventId, Progress};
use flextensor_core::units::UnitId;

use super::super::arena::PAGE;
#[cfg(feature = "seeded-faults")]
use super::super::check::seeds::{self, Seed};
use super::super::verify;
use super::Streaming;
use super::stream_names::program_stream;
use crate::ffi::context;
use crate::ffi::copy;
use crate::ffi::event::{self, Event};
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::{self, Stream};
use crate::ffi::types::CUresult;

/// The driver's side of the pager.
pub(super) struct Gpu {
    pub(super) copies: [Stream; 2],
    pub(super) events: Vec<Event>,
}

impl Progress for Gpu {
    fn completed(&self, event: EventId) -> bool {
        self.events.get(event.0 as usize).is_some_and(|&event| event::query(event).unwrap_or(false))
    }
}

impl Streaming {
    pub(super) fn perform(&mut self) {
        #[cfg(feature = "seeded-faults")]
        seeds::spoil(&mut self.commands);
        let commands = std::mem::take(&mut self.commands);
        for &command in &commands {
            if let Err(error) = self.perform_one(command) {
                self.fail(error, &format!("{command:?}"));
            }
        }
        self.commands = commands;
        self.commands.clear();
    }

    fn perform_one(&mut self, command: Command) -> CudaResult<()> {
        // Nobody is served by a ring that failed, and what it should have recorded may never have been.
        if self.failed.is_some()
            && matches!(command, Command::WaitOnStream { .. } | Command::WaitOnCopy { .. })
        {
            return Ok(());
        }
        if let Some(check) = self.check.as_mut().filter(|_| self.failed.is_none()) {
            check.command(command);
        }
        match command {
            Command::WaitOnStream { stream, event } => match program_stream(stream) {
                Some(stream) => stream::wait(stream, self.event(event)?),
                None => Err(CudaError(CUresult::CUDA_ERROR_INVALID_HANDLE)),
            },
            Command::WaitOnCopy { copy, event } => {
                stream::wait(self.gpu.copies[copy as usize], self.event(event)?)
            }
            Command::RecordReader { stream, event } => match program_stream(stream) {
                Some(stream) => event::record(self.event(event)?, stream),
                // Another thread's own stream cannot be marked from here: wait for all there is instead.
                None => {
                    context::synchronize()?;
                    if let Some(check) = &mut self.check {
                        check.audit().waited_for_all();
                    }
                    Ok(())
                }
            },
            Command::RecordCopy { copy, event } => {
                event::record(self.event(event)?, self.gpu.copies[copy as usize])
            }
            Command::CopyIn { copy, unit, first, pages } => {
                self.copy_in(copy, unit, u64::from(first), u64::from(pages))
            }
            Command::WriteBack { copy, unit, first, pages } => {
                self.write_back(copy, unit, u64::from(first), u64::from(pages))
            }
        }
    }

    fn copy_in(&mut self, copy: CopyStream, unit: UnitId, first: u64, pages: u64) -> CudaResult<()> {
        // Nobody knows what lies behind the addresses of a ring that failed.
        if self.failed.is_some() {
            return Ok(());
        }
        self.bytes_in += pages * PAGE;
        if self.unit(unit).is_some_and(|unit| first + pages == unit.pages) {
            self.settle_overhang(unit, copy)?;
        }
        #[cfg(feature = "seeded-faults")]
        if seeds::is(Seed::ShadowChanged)
            && let Some(unit) = self.unit(unit)
        {
            seeds::scribble(&unit.shadow);
        }
        if let Some(check) = &mut self.check {
            return check.copy_in(copy, unit, first, pages);
        }
        let on = self.gpu.copies[copy as usize];
        let Some(unit) = self.unit(unit) else { return Ok(()) };
        unit.shadow.pieces(first * PAGE, pages * PAGE).try_for_each(|(offset, bytes, host)| {
            // SAFETY: the unit keeps its shadow until its last copy has ended.
            unsafe { copy::to_device_async(unit.address + offset, host, bytes as usize, on) }
        })
    }

    fn write_back(&mut self, copy: CopyStream, id: UnitId, first: u64, pages: u64) -> CudaResult<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        let on = self.gpu.copies[copy as usize];
        let (context, device) = (self.context, self.device);
        self.bytes_back += pages * PAGE;
        let Some(unit) = self.unit_mut(id) else { return Ok(()) };
        if first == 0 {
            verify::before_write_back(unit, on);
        }
        let is_last = first + pages == unit.pages;
        let (address, shadow) = (unit.address, unit.shadow);
        let overhang = shadow.overhang(unit.overhang).filter(|_| is_last);
        let out = |(offset, bytes, host): (u64, u64, *const u8)| {
            // SAFETY: as in `copy_in`; the protocol keeps everybody else from these bytes meanwhile.
            unsafe { copy::to_host_async(host.cast_mut(), address + offset, bytes as usize, on) }
        };
        match &self.check {
            Some(check) => check.copy_out(copy, id, first, pages)?,
            None => shadow.pieces(first * PAGE, pages * PAGE).try_for_each(out)?,
        }
        // Its page is private.
        overhang.map_or(Ok(()), out)?;
        if let Some(unit) = self.unit_mut(id).filter(|_| is_last) {
            verify::after_write_back(context, device, id, unit, on);
        }
        match &mut self.check {
            Some(check) => check.wrote_back(copy, id, first, pages),
            None => Ok(()),
        }
    }

    /// What hangs over comes back to its page, if it was written at the shadow.
    pub(super) fn settle_overhang(&mut self, unit: UnitId, on: CopyStream) -> CudaResult<()> {
        let on = self.gpu.copies[on as usize];
        let Some(unit) = self.unit_mut(unit).filter(|unit| unit.overhang_written) else { return Ok(()) };
        unit.overhang_written = false;
        unit.shadow.overhang(unit.overhang).map_or(Ok(()), |(offset, bytes, host)| {
            // SAFETY: as in `copy_in`.
            unsafe { copy::to_device_async(unit.address + offset, host, bytes as usize, on) }
        })
    }

    fn event(&mut self, id: EventId) -> CudaResult<Event> {
        while self.gpu.events.len() <= id.0 as usize {
            self.gpu.events.push(event::create(false)?);
        }
        Ok(self.gpu.events[id.0 as usize])
    }
}
