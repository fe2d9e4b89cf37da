"""What is measured of a run to be shown: it decides nothing, in bounded memory. DESIGN.md says where what is."""
