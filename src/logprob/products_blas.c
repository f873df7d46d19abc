typedef int bp_not_written_yet;
