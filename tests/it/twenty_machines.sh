# on m1: the admin, who also runs the first registry. All twenty machines have the host name "vm".
ckpt grid init --name lab --registry 10.0.0.1:7601
ckpt-store registry &

# on m2: the second registry
ckpt-store init --role registry --name r2
scp .local/share/ckpt/registry/identity.pub m1:r2.pub

# on m1: signs it, and lets it sign donors
ckpt grid sign --role registry --pubkey r2.pub --addr 10.0.0.2:7601 -o r2.crt
ckpt grid delegate r2 -o enrol.crt
scp r2.crt m2:.local/share/ckpt/registry/identity.crt
scp enrol.crt m2:.local/share/ckpt/registry/
scp .local/share/ckpt/authority/grid.toml m2:.local/share/ckpt/registry/
scp .local/share/ckpt/authority/grid.members m2:.local/share/ckpt/registry/

# on m2
ckpt-store registry &

# on m1: ten machines join at the first registry, eight at the second one, people where it is allowed
ckpt grid invite --count 10 --registry registry
ckpt grid invite --count 8 --registry r2
ckpt grid invite --submitters 3

# on m1 m2 m3 m4 m5 m6 m7 m8 m9 m10
ckpt-store join TOKEN
ckpt-store serve &

# on m11: what one registry signed is known to the other within ten seconds
sleep 12

# on m11 m12 m13 m14 m15 m16 m17 m18
ckpt-store join TOKEN
ckpt-store serve &

# on m19: Ada, on her laptop
ckpt join --name ada TOKEN
for i in $(seq 60); do ckpt --json hosts | grep -q '"up":18' && exit 0; sleep 1; done; exit 1
echo precious > image
ckpt save --job 42 image
ckpt key export --seal -o ada.sealed

# on m20: Bob
ckpt join --name bob TOKEN
echo other > image
ckpt save --job 7 image

# on m1: eighteen machines have eighteen names; the record has the people, too; and there is a copy of it
ckpt grid show > before
test $(awk '$1 ~ /^vm/ { print $1 }' before | sort -u | wc -l) = 18
grep -q '^ada ' before
ckpt grid backup authority.sealed
scp authority.sealed m20:

# on m18: the laptop m19 is stolen. Ada restores elsewhere, from the file, and saves with a new key.
scp m19:ada.sealed .
ckpt key import ada.sealed
ckpt restore --job 42 -o image
ckpt --grid new.toml --key-file new.key --cert-file new.crt join --name ada-new TOKEN
ckpt --grid new.toml --key-file new.key --cert-file new.crt save --job 42 image
ckpt --grid new.toml --key-file new.key --cert-file new.crt key export --seal -o new.sealed

# on m1: a name that only registries report is refused, eight digits of the key are not
! ckpt grid revoke ada
ckpt grid revoke $(awk '$1 == "ada" { print $3 }' before)

# on m19: the thief reads nothing
for i in $(seq 60); do code=0; ckpt list || code=$?; [ $code = 6 ] && exit 0; sleep 1; done; exit 1

# on m5: the disk is replaced
systemctl stop ckpt-store
rm -r .local/share/ckpt/store

# on m1
ckpt grid invite --replace $(awk '/10.0.0.5:7600/ { print $3 }' before)
scp before m5:

# on m5: the machine is back under its name
ckpt-store join --name $(awk '/10.0.0.5:7600/ { print $1 }' before) TOKEN
ckpt-store serve &

# on m1: the authority is lost, and restored from the copy, which is older than both revocations
rm -r .local/share/ckpt/authority
rm authority.sealed
scp m20:authority.sealed .
ckpt grid restore authority.sealed
ckpt grid show > after
grep '^ada ' after | grep -q revoked
test $(awk '$1 ~ /^vm/ { print $1 }' after | sort -u | wc -l) = 18
test $(awk '$1 ~ /^vm/ && !/revoked/ { print $1 }' after | wc -l) = 18

# on m1: a person is shut out
ckpt grid revoke $(awk '$1 == "bob" { print $3 }' after)

# on m20
for i in $(seq 60); do code=0; ckpt list || code=$?; [ $code = 6 ] && exit 0; sleep 1; done; exit 1

# on m1 m2: no registry is alive
systemctl stop ckpt-store

# on m17: a machine that was never Ada's restores from the file
scp m18:new.sealed .
ckpt key import new.sealed
ckpt restore --job 42 -o out
grep -q precious out
