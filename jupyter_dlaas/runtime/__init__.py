"""What runs on the machine for one job: zygote, guardian, learner processes. Standard library only.

It runs inside other people's Pythons (3.11 and newer), where nothing of ours is installed.
"""
