"""The comparison of all schedules and formats on one sparse mask, with its picture."""
