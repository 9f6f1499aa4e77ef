#![allow(clippy::unwrap_used, clippy::print_stdout)]
mod models;
use flextensor_core::plan::{plan, PlanRequest, StayReason};
use flextensor_core::simulate::simulate_shapes;
use flextensor_core::link::LinkCurve;
use models::{llama, Work};
#[test]
fn jitter() {
    for (shapes, gib) in [(2,24.0f64),(1,24.0),(2,20.38),(1,20.38),(2,18.0),(2,16.0),(1,16.0),(2,8.0)] {
        let mut r = llama(Work::Prefill, Some((gib*(1u64<<30) as f64) as u64));
        if shapes==2 { r.passes.extend(llama(Work::Decode, None).passes); }
        r.units[0].stay = Some(StayReason::Rows); r.units[0].bytes=0; r.units[0].pages=0;
        let p = plan(&r).unwrap();
        print!("shapes {shapes} {gib} ring {} MiB chunk {} streamed {} predicted {:.1}/{:.1}:", p.ring_bytes>>20, p.chunk_pages, p.streamed_bytes>>20, p.predicted_ms, p.forecasts[0].resident_ms);
        let mut seed=1u64; let mut rnd=|| { seed=seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); ((seed>>33) as f64)/((1u64<<31) as f64)*2.0-1.0};
        for (j, uni) in [(0.0,1.0),(0.03,1.0),(0.1,1.0),(0.2,1.0),(0.0,0.97),(0.0,0.9),(0.0,0.85)] {
            let mut q: PlanRequest = r.clone();
            for u in &mut q.passes[0].uses { u.compute_ms *= uni*(1.0+j*rnd()); }
            q.passes[0].resident_ms = 0.0;
            let s = simulate_shapes(&q,&p,false).unwrap();
            let res: f64 = q.passes[0].uses.iter().map(|u|u.compute_ms).sum();
            print!("  j{j} x{uni}: {:.2} ({:.4})", s[0].cycle_ms, s[0].cycle_ms/res);
        }
        println!();
        let _ = LinkCurve::default();
    }
}
