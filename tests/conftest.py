"""What all tests of the harness share: no deadline for one example, which would measure how busy the machine is."""

from hypothesis import settings

settings.register_profile("unhurried", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("unhurried")
