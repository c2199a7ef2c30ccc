#!/bin/sh
# Makes all tables of docs/research/performance.md that compare programs or sizes, in one run. Needs an idle machine,
# and takes an hour or two on two cores.
#
#     benches/turns/all.sh BEFORE IMAGES OUT
#
# BEFORE is an earlier build of ckpt. IMAGES has the reference image and its next version (ckpt1.img,
# ckpt2.img); the dumps of LAMMPS (Debian: lammps, gdb) and of ranks are written there if they are missing.
# OUT gets one file for each table. Run this from the top of the repository.
set -eu
before=$1 images=$2 out=$3
turns=benches/turns/turns.py
cargo build --release --locked -p ckpt -p benches
after=target/release/ckpt
mkdir -p "$out"
[ -e "$images/lammps2.img" ] || benches/turns/lammps.py "$images"
[ -e "$images/ranks" ] || benches/ranks/make.py "$images/ranks"

tables() {
    "$turns" --before "$before" --after "$after" --rounds 9
    "$turns" --before "$before" --after "$after" --rounds 7 --sizes "" --image "$images/ckpt1.img" --next "$images/ckpt2.img"
    "$turns" --before "$before" --after "$after" --rounds 5 --sizes "" --image "$images/lammps1.img" --next "$images/lammps2.img"
}
tables > "$out/turns.md"
"$turns" --after "$after" --rounds 9 --slices --image "$images/ckpt1.img" --next "$images/ckpt2.img" > "$out/slices.md"
target/release/net-throughput 512 > "$out/net-throughput.txt"
target/release/whole-program "$images/ckpt1.img" 5 > "$out/whole-program.md"
for image in ckpt lammps; do
    benches/peers/race.py --image "$images/${image}1.img" --next "$images/${image}2.img" --rounds 2 > "$out/race-$image.md"
done
"$turns" --before "$before" --after "$after" --rounds 5 --ranks "$images"/ranks/* > "$out/ranks.md"
target/release/growth "$images/ckpt1.img" docs/research/img 16 > "$out/growth.md"
