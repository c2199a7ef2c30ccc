//! Whether the machine runs on its battery.

use std::fs;

use crate::Machine;

/// Whether the machine runs on its battery: it has a battery that discharges, and no mains supply that is on.
#[must_use]
pub fn on_battery(machine: &Machine) -> bool {
    let Ok(supplies) = fs::read_dir(machine.path("/sys/class/power_supply")) else {
        return false;
    };
    let mut battery = false;
    let mut mains = false;
    for supply in supplies.flatten() {
        let read = |name| fs::read_to_string(supply.path().join(name)).unwrap_or_default();
        match read("type").trim() {
            "Battery" => battery |= read("status").trim() == "Discharging",
            "Mains" | "USB" => mains |= read("online").trim() == "1",
            _ => {}
        }
    }
    battery && !mains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laptop_without_mains_is_on_battery() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        let write = |supply: &str, name: &str, text: &str| {
            let supply = machine.path("/sys/class/power_supply").join(supply);
            fs::create_dir_all(&supply).unwrap();
            fs::write(supply.join(name), text).unwrap();
        };
        assert!(!on_battery(&machine));
        write("BAT0", "type", "Battery\n");
        write("BAT0", "status", "Discharging\n");
        assert!(on_battery(&machine));
        write("AC", "type", "Mains\n");
        write("AC", "online", "1\n");
        assert!(!on_battery(&machine));
        write("AC", "online", "0\n");
        assert!(on_battery(&machine));
    }
}
